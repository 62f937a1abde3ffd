// SPDX-License-Identifier: Apache-2.0
// Shapes of drafters and rows that bench_step times, and the operations that they cost.
#pragma once

#include <dflash/data/packed_row.hpp>
#include <dflash/model/config.hpp>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace dflash::bench {

/// Names that preset() takes.
std::vector<std::string> preset_names();

/// Sizes of a published drafter, or of one for tests. Throws Error{Config} naming what there is.
model::DraftConfig preset(std::string_view name);

/// A row: its tokens and blocks are spread evenly over its documents.
struct RowSize {
    std::int64_t tokens = 4096;
    std::int64_t documents = 1;
    std::int64_t anchors = 512;
};

/// Every token is trained on, anchors are drawn as in training.
data::PackedRow make_row(const model::DraftConfig& config, const RowSize& size);

/// Floating-point operations of one row, forward and backward, with a frozen head and features
/// that need no gradient: products with trained weights three times, fc and head twice, attention
/// once and 2.5 times (five products in the backward, so recomputing more of them counts as waste).
struct Flops {
    double gemm = 0;
    double attention = 0;

    double total() const { return gemm + attention; }
};

Flops count_flops(const model::DraftConfig& config, const data::PackedRow& row);

}  // namespace dflash::bench
