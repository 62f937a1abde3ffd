// SPDX-License-Identifier: Apache-2.0
// The coded families, and how their templates are told apart.
#pragma once

#include <dflash/data/chat_format.hpp>

#include <memory>
#include <string_view>

namespace dflash::data {

/// ChatML of SmolLM2-Instruct.
std::unique_ptr<ChatFormat> make_smollm2_format();
bool is_smollm2_template(std::string_view chat_template);

/// Qwen3 (the hybrid models of April 2025), with tools and think blocks.
std::unique_ptr<ChatFormat> make_qwen3_format();
bool is_qwen3_template(std::string_view chat_template);

}  // namespace dflash::data
