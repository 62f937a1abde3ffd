// SPDX-License-Identifier: Apache-2.0
// A golden case of draft and verify: target, drafter, and the rounds that a reference made.
#pragma once

#include "golden_check.hpp"

#include <dflash/eval/decode_rounds.hpp>
#include <dflash/model/draft_decoder.hpp>
#include <dflash/target/target_model.hpp>

#include <ATen/ATen.h>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace dflash::golden {

struct ExpectedRun {
    std::vector<TokenId> prompt;
    std::int64_t max_new_tokens = 0;
    std::vector<TokenId> stop_tokens;
    std::vector<TokenId> emitted;
    std::vector<eval::Round> rounds;
    double tau = 0;
};

/// Both models in fp32.
struct DecodeCase {
    std::vector<ExpectedRun> runs;
    double mean_tau = 0;
    std::int64_t block_size = 0;
    std::unique_ptr<target::TargetModel> target;
    std::unique_ptr<model::DraftDecoder> drafter;

    DecodeCase(const std::string& folder, at::Device device);
};

}  // namespace dflash::golden
