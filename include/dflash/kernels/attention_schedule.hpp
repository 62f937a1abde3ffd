// SPDX-License-Identifier: Apache-2.0
// The attention of the blocks of one packed row as lists of tasks for the kernels of attention.hpp:
// O(N + T / keys of a task) integers made on the host, in place of a mask over queries and keys.
//
// T context rows, N blocks of B slots. Who sees what is said in model/attention.hpp: a block sees
// its own slots and the context rows [context_begin, anchor), with a window w slot k sees of them
// only those above anchor + k - w.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace dflash::kernels {

/// What is compiled into the attention kernels.
struct AttentionShape {
    int head_dim = 0;       ///< 32, 64, 128 or 256
    int group = 0;          ///< query heads of a key head, 1 to 8
    int block_size = 0;     ///< 2 to 32
    bool causal = false;    ///< in the own block a slot sees only the slots up to itself
    bool windowed = false;  ///< there is a window; its length is an argument

    bool operator==(const AttentionShape&) const = default;
};

/// Sizes of the tasks of a shape, the same on every architecture. Rows are (slot, query head of the
/// group).
struct AttentionTaskSizes {
    int forward_rows = 0;           ///< of a forward task, at most, but at least one block's
    int query_gradient_rows = 0;    ///< of a task of the gradient of queries, likewise
    int context_gradient_keys = 0;  ///< of a task of the gradient of the context, at most
};

/// Throws Error{Internal} for a shape out of range.
AttentionTaskSizes attention_task_sizes(const AttentionShape& shape);

/// Consecutive blocks of one document against the context keys [key_begin, key_end): all that some
/// of them see. Empty contexts have key_begin == key_end.
struct AttentionQueryTask {
    std::int32_t first_block = 0;
    std::int32_t num_blocks = 0;
    std::int32_t key_begin = 0;
    std::int32_t key_end = 0;

    bool operator==(const AttentionQueryTask&) const = default;
};

/// Consecutive context keys of one document, and the blocks [block_begin, block_end) of which some
/// slot sees one of them. Nobody sees the keys from `seen_count` on.
struct AttentionKeyTask {
    std::int32_t key_begin = 0;
    std::int32_t key_count = 0;
    std::int32_t seen_count = 0;
    std::int32_t block_begin = 0;
    std::int32_t block_end = 0;

    bool operator==(const AttentionKeyTask&) const = default;
};

/// Tasks in the order of their launch: longest first, so that the last ones to run are short.
/// Every block is in one task of each list of query tasks, every context row in one key task.
struct AttentionSchedule {
    std::vector<std::int32_t> anchors;  // [N]
    std::int64_t num_tokens = 0;        // T
    std::vector<AttentionQueryTask> forward;
    std::vector<AttentionQueryTask> query_gradient;
    std::vector<AttentionKeyTask> context_gradient;

    std::int64_t num_blocks() const { return static_cast<std::int64_t>(anchors.size()); }

    /// Most integers that packed() of any row with as many blocks and tokens has, however many
    /// documents it is made of.
    static std::int64_t largest_packed_size(std::int64_t num_blocks, std::int64_t num_tokens);

    /// All of it in one piece for the device: anchors, then the three lists, each list starting at
    /// a multiple of 4 integers.
    std::vector<std::int32_t> packed() const;
};

/// Internal error unless both are as in data::BlockPlan: rising, 0 <= context_begin <= anchor < T.
void check_blocks(std::span<const std::int32_t> anchors,
                  std::span<const std::int32_t> context_begin,
                  std::int64_t num_tokens);

/// `anchors` and `context_begin` as in data::BlockPlan: rising, 0 <= context_begin <= anchor < T.
/// `window` is 0 for a shape without. Throws Error{Internal} otherwise. Pure; any thread.
AttentionSchedule make_attention_schedule(const AttentionShape& shape,
                                          std::span<const std::int32_t> anchors,
                                          std::span<const std::int32_t> context_begin,
                                          std::int64_t num_tokens,
                                          std::int64_t window);

}  // namespace dflash::kernels
