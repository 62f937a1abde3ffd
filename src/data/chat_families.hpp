// SPDX-License-Identifier: Apache-2.0
// The coded families.
#pragma once

#include <dflash/data/chat_format.hpp>

#include <memory>
#include <string_view>

namespace dflash::data {

/// ChatML of SmolLM2-Instruct.
std::unique_ptr<ChatFormat> make_smollm2_format();

std::unique_ptr<ChatFormat> make_qwen25_format();

/// Qwen3 (the hybrid models of April 2025), with tools and think blocks.
std::unique_ptr<ChatFormat> make_qwen3_format();

std::unique_ptr<ChatFormat> make_qwen3_instruct_2507_format();

/// Qwen3.5 of 4B and more, whose prompts open a think block by default.
std::unique_ptr<ChatFormat> make_qwen35_format();
/// Qwen3.5 of 2B and less, whose prompts close it by default.
std::unique_ptr<ChatFormat> make_qwen35_small_format();
std::unique_ptr<ChatFormat> make_qwen36_format();
std::unique_ptr<ChatFormat> make_qwen38_format();

std::unique_ptr<ChatFormat> make_llama31_format();
std::unique_ptr<ChatFormat> make_gpt_oss_format();

inline constexpr std::string_view kGenericFormat = "generic";
std::unique_ptr<ChatFormat> make_generic_format(const GenericMarks& marks);

}  // namespace dflash::data
