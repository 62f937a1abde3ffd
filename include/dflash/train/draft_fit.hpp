// SPDX-License-Identifier: Apache-2.0
// Whether a drafter belongs to a target.
#pragma once

#include <dflash/model/config.hpp>
#include <dflash/target/config.hpp>

#include <string>

namespace dflash::train {

/// Throws Error{Config} if a drafter from `origin` does not belong to the target: sizes, layers,
/// mask token.
void check_fits(const model::DraftConfig& config,
                const target::TargetConfig& target,
                const std::string& origin);

}  // namespace dflash::train
