// SPDX-License-Identifier: Apache-2.0
#include "row_inputs.hpp"

#include <dflash/core/check.hpp>
#include <dflash/tensor/bridge.hpp>

#include <cstdint>
#include <vector>

namespace dflash::model {

RowInputs::RowInputs(const data::PackedRow& row, TokenId mask_token, at::Device device) {
    const data::BlockPlan& blocks = row.blocks;
    const std::int64_t B = blocks.block_size;
    const std::int64_t N = blocks.num_blocks();
    const std::int64_t T = row.num_tokens();
    const std::int64_t R = narrow<std::int64_t>(blocks.head_rows.size());
    DFLASH_CHECK(blocks.labels.size() == blocks.head_rows.size() &&
                     blocks.weights.size() == blocks.head_rows.size(),
                 "{} head rows, {} labels, {} weights",
                 R,
                 blocks.labels.size(),
                 blocks.weights.size());

    std::vector<std::int64_t> values;
    values.reserve(narrow<std::size_t>(N + 2 + 2 * N * B + T + 3 * R));
    for (const std::int32_t anchor : blocks.anchors) {
        values.push_back(row.tokens[narrow<std::size_t>(anchor)]);
    }
    values.insert(values.end(), 2, mask_token);
    for (std::int64_t n = 0; n < N; ++n) {
        values.push_back(n);
        values.insert(values.end(), narrow<std::size_t>(B - 1), N);
    }
    for (const std::int32_t anchor : blocks.anchors) {
        // Slots past the document's end go on counting, as they do at inference.
        for (std::int64_t k = 0; k < B; ++k) {
            values.push_back(row.positions[narrow<std::size_t>(anchor)] + k);
        }
    }
    values.insert(values.end(), row.positions.begin(), row.positions.end());
    values.insert(values.end(), blocks.head_rows.begin(), blocks.head_rows.end());
    for (const std::int32_t head_row : blocks.head_rows) {
        values.push_back(head_row % B);
    }
    values.insert(values.end(), blocks.labels.begin(), blocks.labels.end());

    const at::Tensor all = tensor::upload(std::span<const std::int64_t>(values), device);
    std::int64_t begin = 0;
    const auto next = [&](std::int64_t count) {
        begin += count;
        return all.narrow(0, begin - count, count);
    };
    embedded_token_U = next(N + 2);
    embedded_M = next(N * B);
    block_position_M = next(N * B);
    context_position_T = next(T);
    head_row_R = next(R);
    slot_R = next(R);
    label_R = next(R);
    weight_R = tensor::upload(std::span<const float>(blocks.weights), device);
}

}  // namespace dflash::model
