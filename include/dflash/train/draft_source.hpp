// SPDX-License-Identifier: Apache-2.0
// A saved drafter, found by the folder of a run, of one of its steps, or of the drafter itself.
#pragma once

#include <dflash/model/config.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace dflash::train {

struct DraftSource {
    std::string draft_folder;  ///< holds config.json and model.safetensors
    std::string step_folder;   ///< around it, with checksums; empty for a drafter on its own
    std::string run_folder;    ///< around that; empty likewise
    std::string target;        ///< run.target of that run, as it was given; empty if not known
};

/// Finds the drafter of `path`: of a run that of `step`, or the newest. Compares its files with the
/// checksums of the checkpoint, where there are any. Throws Error{Config} if there is none,
/// Error{Data} naming the other steps if it is damaged.
DraftSource find_draft(const std::string& path, std::optional<std::int64_t> step = std::nullopt);

/// config.json of a drafter's folder, in the published or in speculators' format. Throws
/// Error{Config}.
model::DraftConfig read_draft_config(const std::string& folder);

/// Steps of a run whose draft is there, rising.
std::vector<std::int64_t> draft_steps(const std::string& run_folder);

}  // namespace dflash::train
