// SPDX-License-Identifier: Apache-2.0
// A golden case of draft and verify: target, drafter, and the rounds that a reference made.
#pragma once

#include "golden_check.hpp"

#include <dflash/eval/decode_rounds.hpp>
#include <dflash/model/draft_decoder.hpp>
#include <dflash/target/target_model.hpp>
#include <dflash/tensor/row_ops.hpp>

#include <ATen/ATen.h>
#include <cstdint>
#include <functional>
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

struct DecodeCase {
    std::vector<ExpectedRun> runs;
    double mean_tau = 0;
    std::int64_t block_size = 0;
    std::unique_ptr<target::TargetModel> target;
    std::unique_ptr<model::DraftDecoder> drafter;

    /// Both models in `dtype`, each with row operations of its own.
    DecodeCase(
        const std::string& folder,
        at::Device device,
        at::ScalarType dtype = at::kFloat,
        const std::function<std::shared_ptr<tensor::RowOps>()>& make_row_ops = [] {
            return std::make_shared<tensor::TorchRowOps>();
        });
};

}  // namespace dflash::golden
