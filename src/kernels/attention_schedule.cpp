// SPDX-License-Identifier: Apache-2.0
#include <dflash/core/check.hpp>
#include <dflash/kernels/attention_schedule.hpp>

#include <algorithm>
#include <limits>

namespace dflash::kernels {
namespace {

using Index = std::int32_t;

/// Blocks [begin, end) of one document that starts at token `start` and ends where the next one
/// with blocks starts, or with the row.
struct Segment {
    Index start = 0;
    Index end = 0;
    Index block_begin = 0;
    Index block_end = 0;
};

std::vector<Segment> segments(std::span<const Index> context_begin, Index num_tokens) {
    std::vector<Segment> result;
    if (context_begin.empty() || context_begin.front() > 0) {
        result.push_back({0, num_tokens, 0, 0});
    }
    for (std::size_t n = 0; n < context_begin.size(); ++n) {
        const Index block = static_cast<Index>(n);
        if (n == 0 || context_begin[n] != context_begin[n - 1]) {
            if (!result.empty()) {
                result.back().end = context_begin[n];
            }
            result.push_back({context_begin[n], num_tokens, block, block});
        }
        result.back().block_end = block + 1;
    }
    return result;
}

void append_query_tasks(std::vector<AttentionQueryTask>& tasks,
                        const Segment& segment,
                        std::span<const Index> anchors,
                        Index blocks_per_task,
                        Index window) {
    for (Index block = segment.block_begin; block < segment.block_end; block += blocks_per_task) {
        AttentionQueryTask task;
        task.first_block = block;
        task.num_blocks = std::min(blocks_per_task, segment.block_end - block);
        task.key_end = anchors[static_cast<std::size_t>(block + task.num_blocks - 1)];
        task.key_begin = segment.start;
        if (window > 0) {
            const Index lowest = anchors[static_cast<std::size_t>(block)] - window + 1;
            task.key_begin = std::min(std::max(segment.start, lowest), task.key_end);
        }
        tasks.push_back(task);
    }
}

void append_key_tasks(std::vector<AttentionKeyTask>& tasks,
                      const Segment& segment,
                      std::span<const Index> anchors,
                      Index keys_per_task,
                      Index window) {
    const auto begin = anchors.begin() + segment.block_begin;
    const auto end = anchors.begin() + segment.block_end;
    const Index seen_end = begin == end ? segment.start : *(end - 1);
    for (Index key = segment.start; key < segment.end; key += keys_per_task) {
        AttentionKeyTask task;
        task.key_begin = key;
        task.key_count = std::min(keys_per_task, segment.end - key);
        task.seen_count = std::clamp(seen_end - key, 0, task.key_count);
        const auto first = std::upper_bound(begin, end, key);
        auto last = end;
        if (window > 0) {
            // Slot 0 looks back furthest: it sees keys above anchor - window.
            const std::int64_t too_far = std::int64_t{key} + task.key_count - 1 + window;
            last = std::lower_bound(first, end, too_far);
        }
        task.block_begin = static_cast<Index>(first - anchors.begin());
        task.block_end = static_cast<Index>(last - anchors.begin());
        tasks.push_back(task);
    }
}

void append(std::vector<Index>& out, const AttentionQueryTask& task) {
    out.insert(out.end(), {task.first_block, task.num_blocks, task.key_begin, task.key_end});
}

void append(std::vector<Index>& out, const AttentionKeyTask& task) {
    out.insert(out.end(),
               {task.key_begin, task.key_count, task.seen_count, task.block_begin, task.block_end});
}

template <typename Task>
void append_list(std::vector<Index>& out, const std::vector<Task>& tasks) {
    out.resize((out.size() + 3) / 4 * 4, 0);
    for (const Task& task : tasks) {
        append(out, task);
    }
}

}  // namespace

AttentionTaskSizes attention_task_sizes(const AttentionShape& shape) {
    const bool known_dim = shape.head_dim == 32 || shape.head_dim == 64 || shape.head_dim == 128 ||
                           shape.head_dim == 256;
    DFLASH_CHECK(known_dim && shape.group >= 1 && shape.group <= 8 && shape.block_size >= 2 &&
                     shape.block_size <= 32,
                 "attention with head size {}, {} query heads a key head, block size {}",
                 shape.head_dim,
                 shape.group,
                 shape.block_size);
    return {.forward_rows = 128,
            .query_gradient_rows = shape.head_dim == 256 ? 64 : 128,
            .context_gradient_keys = 64};
}

void check_blocks(std::span<const std::int32_t> anchors,
                  std::span<const std::int32_t> context_begin,
                  std::int64_t num_tokens) {
    DFLASH_CHECK(anchors.size() == context_begin.size(),
                 "{} anchors, {} context starts",
                 anchors.size(),
                 context_begin.size());
    for (std::size_t n = 0; n < anchors.size(); ++n) {
        const bool rising =
            n == 0 || (anchors[n] >= anchors[n - 1] && context_begin[n] >= context_begin[n - 1]);
        DFLASH_CHECK(rising && context_begin[n] >= 0 && context_begin[n] <= anchors[n] &&
                         anchors[n] < num_tokens,
                     "block {}: anchor {}, context from {}, row of {} tokens",
                     n,
                     anchors[n],
                     context_begin[n],
                     num_tokens);
    }
}

AttentionSchedule make_attention_schedule(const AttentionShape& shape,
                                          std::span<const std::int32_t> anchors,
                                          std::span<const std::int32_t> context_begin,
                                          std::int64_t num_tokens,
                                          std::int64_t window) {
    const AttentionTaskSizes sizes = attention_task_sizes(shape);
    check_blocks(anchors, context_begin, num_tokens);
    DFLASH_CHECK((window > 0) == shape.windowed && window >= 0,
                 "window {} for a shape {} window",
                 window,
                 shape.windowed ? "with" : "without");
    const Index block_rows = shape.block_size * shape.group;
    // Rows and positions are 32-bit in the kernels; offsets into tensors are 64-bit.
    constexpr std::int64_t kMost = std::numeric_limits<Index>::max() / 2;
    const std::int64_t num_rows = static_cast<std::int64_t>(anchors.size()) * block_rows;
    DFLASH_CHECK(num_rows <= kMost && num_tokens <= kMost,
                 "{} rows of (token, head), {} context rows",
                 num_rows,
                 num_tokens);

    AttentionSchedule schedule;
    schedule.anchors.assign(anchors.begin(), anchors.end());
    schedule.num_tokens = num_tokens;
    // A window longer than the row hides nothing.
    const Index reach = static_cast<Index>(std::min(window, kMost));
    for (const Segment& segment : segments(context_begin, static_cast<Index>(num_tokens))) {
        append_query_tasks(schedule.forward,
                           segment,
                           anchors,
                           std::max(1, sizes.forward_rows / block_rows),
                           reach);
        append_query_tasks(schedule.query_gradient,
                           segment,
                           anchors,
                           std::max(1, sizes.query_gradient_rows / block_rows),
                           reach);
        append_key_tasks(
            schedule.context_gradient, segment, anchors, sizes.context_gradient_keys, reach);
    }
    const auto longest_first = [&](auto& tasks, auto length) {
        std::stable_sort(tasks.begin(), tasks.end(), [&](const auto& a, const auto& b) {
            return length(a) > length(b);
        });
    };
    const auto keys_of = [&](const AttentionQueryTask& task) {
        return std::int64_t{task.key_end - task.key_begin + task.num_blocks * shape.block_size};
    };
    longest_first(schedule.forward, keys_of);
    longest_first(schedule.query_gradient, keys_of);
    longest_first(schedule.context_gradient,
                  [](const AttentionKeyTask& task) { return task.block_end - task.block_begin; });
    return schedule;
}

std::int64_t AttentionSchedule::largest_packed_size(std::int64_t num_blocks,
                                                    std::int64_t num_tokens) {
    constexpr std::int64_t kKeysPerTask = 64;  // of every shape, as attention_task_sizes() says
    constexpr std::int64_t kPadding = 3;       // before each of the three lists
    // A query task has a block at least. Each document, and what lies before the first with
    // blocks, may end in a key task that is not full.
    const std::int64_t key_tasks = num_tokens / kKeysPerTask + num_blocks + 1;
    return num_blocks + 3 * kPadding + 2 * num_blocks * (Index{sizeof(AttentionQueryTask)} / 4) +
           key_tasks * (Index{sizeof(AttentionKeyTask)} / 4);
}

std::vector<std::int32_t> AttentionSchedule::packed() const {
    std::vector<Index> result(anchors);
    append_list(result, forward);
    append_list(result, query_gradient);
    append_list(result, context_gradient);
    return result;
}

}  // namespace dflash::kernels
