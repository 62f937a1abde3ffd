// SPDX-License-Identifier: Apache-2.0
#include <dflash/core/error.hpp>
#include <dflash/kernels/attention_schedule.hpp>

#include <algorithm>
#include <cstdint>
#include <doctest/doctest.h>
#include <set>
#include <vector>

using dflash::kernels::attention_task_sizes;
using dflash::kernels::AttentionKeyTask;
using dflash::kernels::AttentionQueryTask;
using dflash::kernels::AttentionSchedule;
using dflash::kernels::AttentionShape;
using dflash::kernels::make_attention_schedule;

namespace {

constexpr AttentionShape kFull{.head_dim = 128, .group = 4, .block_size = 16};
constexpr AttentionShape kSliding{
    .head_dim = 128, .group = 4, .block_size = 16, .causal = true, .windowed = true};

struct Row {
    std::vector<std::int32_t> anchors;
    std::vector<std::int32_t> context_begin;
    std::int64_t num_tokens = 0;
};

/// Two documents, 0 to 299 and 300 to 999, with tokens after the last anchor.
Row two_documents() {
    Row row;
    row.num_tokens = 1000;
    for (std::int32_t anchor = 0; anchor < 290; anchor += 7) {
        row.anchors.push_back(anchor);
        row.context_begin.push_back(0);
    }
    for (std::int32_t anchor = 300; anchor < 900; anchor += 11) {
        row.anchors.push_back(anchor);
        row.anchors.push_back(anchor);
        row.context_begin.push_back(300);
        row.context_begin.push_back(300);
    }
    return row;
}

AttentionSchedule schedule_of(const AttentionShape& shape, const Row& row, std::int64_t window) {
    return make_attention_schedule(shape, row.anchors, row.context_begin, row.num_tokens, window);
}

/// Whether slot `slot` of block `n` sees context row `key`, from the definition.
bool sees(const Row& row, std::size_t n, std::int64_t slot, std::int64_t key, std::int64_t window) {
    return key >= row.context_begin[n] && key < row.anchors[n] &&
           (window == 0 || row.anchors[n] + slot - key < window);
}

}  // namespace

TEST_SUITE("kernels.attention_schedule") {
    TEST_CASE("every block is in one query task, with all keys that it sees") {
        const Row row = two_documents();
        for (const std::int64_t window : {0, 1, 40, 5000}) {
            CAPTURE(window);
            const AttentionShape shape = window > 0 ? kSliding : kFull;
            const AttentionSchedule schedule = schedule_of(shape, row, window);
            for (const std::vector<AttentionQueryTask>* tasks :
                 {&schedule.forward, &schedule.query_gradient}) {
                std::vector<int> times(row.anchors.size(), 0);
                for (const AttentionQueryTask& task : *tasks) {
                    REQUIRE(task.num_blocks >= 1);
                    CHECK(task.num_blocks * 16 * 4 <= 128);
                    CHECK(task.key_begin <= task.key_end);
                    for (std::int32_t i = 0; i < task.num_blocks; ++i) {
                        const std::int32_t block = task.first_block + i;
                        const std::size_t n = static_cast<std::size_t>(block);
                        ++times[n];
                        CHECK(row.context_begin[n] ==
                              row.context_begin[static_cast<std::size_t>(task.first_block)]);
                        for (std::int64_t key = 0; key < row.num_tokens; ++key) {
                            const bool inside = key >= task.key_begin && key < task.key_end;
                            REQUIRE((inside || !sees(row, n, 0, key, window)));
                            REQUIRE((!inside || key >= row.context_begin[n]));
                        }
                    }
                }
                CHECK(std::all_of(times.begin(), times.end(), [](int n) { return n == 1; }));
            }
        }
    }

    TEST_CASE("every context row is in one key task, with all blocks that see it") {
        const Row row = two_documents();
        for (const std::int64_t window : {0, 1, 40, 5000}) {
            CAPTURE(window);
            const AttentionShape shape = window > 0 ? kSliding : kFull;
            std::vector<int> times(1000, 0);
            for (const AttentionKeyTask& task : schedule_of(shape, row, window).context_gradient) {
                CHECK(task.key_count >= 1);
                CHECK(task.key_count <= 64);
                CHECK((task.key_begin >= 300 || task.key_begin + task.key_count <= 300));
                for (std::int32_t i = 0; i < task.key_count; ++i) {
                    const std::int32_t key = task.key_begin + i;
                    ++times[static_cast<std::size_t>(key)];
                    for (std::size_t n = 0; n < row.anchors.size(); ++n) {
                        const std::int32_t block = static_cast<std::int32_t>(n);
                        const bool inside = block >= task.block_begin && block < task.block_end;
                        const bool in_document = key >= row.context_begin[n];
                        REQUIRE((!sees(row, n, 0, key, window) || (inside && i < task.seen_count)));
                        REQUIRE((!inside || (in_document && task.key_begin < row.anchors[n])));
                    }
                    const bool before_an_anchor = key < (key < 300 ? 287 : 894);
                    CHECK((i < task.seen_count) == before_an_anchor);
                }
            }
            CHECK(std::all_of(times.begin(), times.end(), [](int n) { return n == 1; }));
        }
    }

    TEST_CASE("a window leaves out the blocks behind it") {
        const Row row = two_documents();
        for (const AttentionKeyTask& task : schedule_of(kSliding, row, 40).context_gradient) {
            if (task.block_begin < task.block_end) {
                const std::size_t last = static_cast<std::size_t>(task.block_end - 1);
                CHECK(sees(row, last, 0, task.key_begin + task.key_count - 1, 40) ==
                      (task.key_begin + task.key_count - 1 < row.anchors[last]));
                CHECK(row.anchors[last] - task.key_begin - task.key_count + 1 < 40);
            }
        }
    }

    TEST_CASE("tasks come longest first") {
        const Row row = two_documents();
        const AttentionSchedule schedule = schedule_of(kFull, row, 0);
        const auto keys = [](const AttentionQueryTask& task) {
            return task.key_end - task.key_begin + task.num_blocks * 16;
        };
        CHECK(std::is_sorted(schedule.forward.begin(),
                             schedule.forward.end(),
                             [&](const auto& a, const auto& b) { return keys(a) > keys(b); }));
        CHECK(std::is_sorted(schedule.context_gradient.begin(),
                             schedule.context_gradient.end(),
                             [](const auto& a, const auto& b) {
                                 return a.block_end - a.block_begin > b.block_end - b.block_begin;
                             }));
    }

    TEST_CASE("its size grows with blocks and tokens, not with their product") {
        Row row;
        row.num_tokens = 131072;
        for (std::int32_t n = 0; n < 8192; ++n) {
            row.anchors.push_back(n * 16 + 15);
            row.context_begin.push_back(n / 512 * 8192);
        }
        const AttentionSchedule schedule = schedule_of(kFull, row, 0);
        CHECK(schedule.forward.size() == 4096);
        CHECK(schedule.context_gradient.size() == 2048);
        CHECK(schedule.packed().size() == 8192 + 2 * 4 * 4096 + 5 * 2048);
    }

    TEST_CASE("no row of a size needs more room than is told, however many documents it has") {
        for (const std::int32_t length : {2, 3, 64, 65, 1024}) {
            for (const std::int32_t blocks_each : {0, 1, 2, 40}) {
                Row row;
                row.num_tokens = 2048;
                for (std::int32_t start = 0; start + length <= row.num_tokens; start += length) {
                    for (std::int32_t n = 0; n < std::min(blocks_each, length - 1); ++n) {
                        row.anchors.push_back(start + n);
                        row.context_begin.push_back(start);
                    }
                }
                for (const AttentionShape& shape :
                     {kFull,
                      kSliding,
                      AttentionShape{.head_dim = 256, .group = 8, .block_size = 32}}) {
                    CAPTURE(length);
                    CAPTURE(blocks_each);
                    CHECK(std::ssize(schedule_of(shape, row, shape.windowed ? 100 : 0).packed()) <=
                          AttentionSchedule::largest_packed_size(std::ssize(row.anchors),
                                                                 row.num_tokens));
                }
            }
        }
    }

    TEST_CASE("a block larger than a task is a task of its own") {
        const AttentionShape shape{.head_dim = 256, .group = 8, .block_size = 32};
        Row row;
        row.num_tokens = 50;
        row.anchors = {10, 20, 30};
        row.context_begin = {0, 0, 0};
        const AttentionSchedule schedule = schedule_of(shape, row, 0);
        CHECK(schedule.forward.size() == 3);
        CHECK(schedule.query_gradient.size() == 3);
    }

    TEST_CASE("lists start where the kernels expect them") {
        Row row;
        row.num_tokens = 70;
        row.anchors = {1, 2, 60};
        row.context_begin = {0, 0, 0};
        const AttentionSchedule schedule = schedule_of(kFull, row, 0);
        const std::vector<std::int32_t> packed = schedule.packed();
        const std::vector<std::int32_t> expected = {
            1,  2,  60, 0,               // anchors, filled up
            2,  1,  0,  60, 0, 2, 0, 2,  // forward
            2,  1,  0,  60, 0, 2, 0, 2,  // gradient of queries
            0,  64, 60, 0,  3,           // gradient of the context: seen up to the last anchor
            64, 6,  0,  3,  3};
        CHECK(packed == expected);
    }

    TEST_CASE("rows without blocks still have all their context rows") {
        Row row;
        row.num_tokens = 100;
        const AttentionSchedule schedule = schedule_of(kFull, row, 0);
        CHECK(schedule.forward.empty());
        REQUIRE(schedule.context_gradient.size() == 2);
        CHECK(schedule.context_gradient[0] == AttentionKeyTask{0, 64, 0, 0, 0});
        CHECK(schedule.context_gradient[1] == AttentionKeyTask{64, 36, 0, 0, 0});
    }

    TEST_CASE("what is not a row of blocks is refused") {
        Row row = two_documents();
        CHECK_THROWS_AS(schedule_of(kFull, row, 5), dflash::Error);
        CHECK_THROWS_AS(schedule_of(kSliding, row, 0), dflash::Error);
        std::swap(row.anchors[1], row.anchors[2]);
        CHECK_THROWS_AS(schedule_of(kFull, row, 0), dflash::Error);
        row = two_documents();
        row.context_begin[3] = 200;
        CHECK_THROWS_AS(schedule_of(kFull, row, 0), dflash::Error);
        row = two_documents();
        row.num_tokens = 800;
        CHECK_THROWS_AS(schedule_of(kFull, row, 0), dflash::Error);
        CHECK_THROWS_AS(attention_task_sizes({.head_dim = 96, .group = 4, .block_size = 16}),
                        dflash::Error);
        CHECK_THROWS_AS(attention_task_sizes({.head_dim = 128, .group = 9, .block_size = 16}),
                        dflash::Error);
        CHECK_THROWS_AS(attention_task_sizes({.head_dim = 128, .group = 4, .block_size = 33}),
                        dflash::Error);
    }
}
