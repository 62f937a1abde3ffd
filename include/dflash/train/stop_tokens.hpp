// SPDX-License-Identifier: Apache-2.0
// What ends an answer.
#pragma once

#include <dflash/data/chat_format.hpp>
#include <dflash/data/tokenizer.hpp>
#include <dflash/target/generation_config.hpp>

#include <vector>

namespace dflash::train {

/// The model's own end tokens, and those that end a turn in the chat format; rising.
std::vector<TokenId> answer_stop_tokens(const target::GenerationConfig& config,
                                        const data::Tokenizer& tokenizer,
                                        const data::ChatFormat& format);

}  // namespace dflash::train
