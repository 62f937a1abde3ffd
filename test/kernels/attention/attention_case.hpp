// SPDX-License-Identifier: Apache-2.0
// A row of documents with blocks, and random tensors for it, as bf16 values on the host.
#pragma once

#include <dflash/kernels/attention_schedule.hpp>

#include <cstdint>
#include <string>
#include <vector>

namespace dflash::kernels::test {

using Bf16 = std::uint16_t;

inline constexpr Bf16 kPoison = 0x7fc1;  // a NaN that no computation makes

Bf16 to_bf16(float value);  ///< rounded to nearest even
float from_bf16(Bf16 value);

/// Blocks of a row: T context rows, N anchors.
struct AttentionCase {
    AttentionShape shape;
    std::int64_t num_key_heads = 1;
    std::int64_t num_tokens = 0;
    std::vector<std::int32_t> anchors;
    std::vector<std::int32_t> context_begin;
    std::int64_t window = 0;
    std::uint64_t seed = 0;

    std::int64_t num_blocks() const { return static_cast<std::int64_t>(anchors.size()); }

    std::int64_t block_tokens() const { return num_blocks() * shape.block_size; }

    std::int64_t num_query_heads() const { return num_key_heads * shape.group; }

    AttentionSchedule schedule() const {
        return make_attention_schedule(shape, anchors, context_begin, num_tokens, window);
    }

    /// Context rows that no block of their document comes after.
    std::vector<bool> padding() const;

    std::string describe() const;
};

/// Dense [tokens, heads, D].
struct AttentionInputs {
    std::vector<Bf16> q;
    std::vector<Bf16> k_context;
    std::vector<Bf16> v_context;
    std::vector<Bf16> k_block;
    std::vector<Bf16> v_block;
    std::vector<Bf16> d_o;
};

/// Nearly normal values, scores of a spread of about 2; context rows of the padding are poison.
AttentionInputs make_inputs(const AttentionCase& c);

/// Anchors of every kind: at the start and the end of documents, equal ones, some in between.
/// Documents begin at `document_begin` (rising, the first at 0 or later).
AttentionCase make_case(const AttentionShape& shape,
                        std::int64_t num_key_heads,
                        std::int64_t num_tokens,
                        std::int64_t num_blocks,
                        const std::vector<std::int32_t>& document_begin,
                        std::int64_t window,
                        std::uint64_t seed);

}  // namespace dflash::kernels::test
