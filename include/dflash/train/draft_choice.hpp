// SPDX-License-Identifier: Apache-2.0
// Which drafter a run trains: from `--init`, from the published drafter of a known target, or by
// rule from the target; then changed by what draft.* says.
#pragma once

#include <dflash/data/chat_format.hpp>
#include <dflash/data/tokenizer.hpp>
#include <dflash/model/config.hpp>
#include <dflash/target/config.hpp>
#include <dflash/train/settings.hpp>

#include <optional>
#include <string>

namespace dflash::train {

struct DraftChoice {
    model::DraftConfig config;
    std::string origin;  ///< "the published drafter of Qwen3-8B", "by rule from the target",
                         ///< "runs/a/step-000100/draft"
};

/// The published drafter of a target, key by key, if it is one of Qwen3-4B, Qwen3-8B, Qwen3.5-27B,
/// Qwen3.6-27B. The Qwen3 ones are recognised by their shape; the 27B ones, which share a shape, by
/// shape and name.
std::optional<model::DraftConfig> published_drafter(const target::TargetConfig& target,
                                                    const std::string& target_name);

/// The mask token by rule: the first row past the tokenizer's last token, else the last special
/// token that the chat format does not use; Error{Config} naming draft.mask_token_id if there is
/// neither. `last_defined` is the largest id that tokenizer.json or tokenizer_config.json defines.
TokenId mask_token_by_rule(const target::TargetConfig& target,
                           const data::Tokenizer& tokenizer,
                           const data::ChatFormat& format,
                           std::int64_t last_defined);

/// Largest token id that a model folder's tokenizer_config.json defines; -1 without one.
std::int64_t last_id_of_tokenizer_config(const std::string& folder);

/// Puts the drafter together. `init` is an empty optional or the config of the drafter to start
/// from, which draft.* must not contradict. Throws Error{Config} naming the setting and both
/// values.
DraftChoice choose_drafter(const DraftSettings& settings,
                           const std::optional<DraftChoice>& init,
                           const target::TargetConfig& target,
                           const target::TargetLocation& location,
                           const data::Tokenizer& tokenizer,
                           const data::ChatFormat& format);

}  // namespace dflash::train
