// SPDX-License-Identifier: Apache-2.0
// How a model is meant to be sampled: generation_config.json of an HF model folder.
#pragma once

#include <dflash/core/types.hpp>
#include <dflash/target/config.hpp>
#include <dflash/target/sampling.hpp>

#include <string>
#include <vector>

namespace dflash::target {

struct GenerationConfig {
    /// Greedy where the file says do_sample false, or says nothing of sampling; what it leaves out
    /// is off, as the servers read it.
    Sampling sampling;
    std::vector<TokenId> stop_tokens;  ///< of this file and of config.json, rising
    /// Keys that would change the choice of tokens and are not followed: "repetition_penalty 1.05".
    std::vector<std::string> ignored;
    bool found = false;  ///< whether there is a file

    /// Reads the folder of a target. Throws Error{Config} with the file for values that are none.
    static GenerationConfig read(const std::string& folder, const TargetConfig& config);
};

}  // namespace dflash::target
