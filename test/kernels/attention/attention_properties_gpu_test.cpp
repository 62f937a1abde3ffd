// SPDX-License-Identifier: Apache-2.0
// What holds exactly: who can see whom, and that results do not depend on chance.
#include "device_attention.hpp"

#include <dflash/gpu/check.hpp>

#include <algorithm>
#include <cmath>
#include <cuda_runtime_api.h>
#include <doctest/doctest.h>
#include <fmt/format.h>
#include <vector>

namespace dflash::kernels::test {
namespace {

constexpr AttentionShape kFull{.head_dim = 128, .group = 4, .block_size = 16};
constexpr AttentionShape kSliding{
    .head_dim = 128, .group = 4, .block_size = 16, .causal = true, .windowed = true};

AttentionCase three_documents(const AttentionShape& shape, std::uint64_t seed) {
    return make_case(shape, 2, 300, 24, {0, 90, 220}, shape.windowed ? 60 : 0, seed);
}

template <typename T>
std::vector<T> rows(const std::vector<T>& x, std::int64_t begin, std::int64_t end) {
    return {x.begin() + begin, x.begin() + end};
}

/// What block `n` gets: its o, log-sum-exp, dq, dk and dv.
struct BlockResults {
    std::vector<Bf16> o, dq, dk, dv;
    std::vector<float> lse;

    BlockResults(const AttentionCase& c, const DeviceResults& r, std::int64_t n) {
        const std::int64_t block_size = c.shape.block_size;
        const std::int64_t query = block_size * c.num_query_heads() * c.shape.head_dim;
        const std::int64_t key = block_size * c.num_key_heads * c.shape.head_dim;
        const std::int64_t heads = block_size * c.num_query_heads();
        o = rows(r.o, n * query, (n + 1) * query);
        dq = rows(r.dq, n * query, (n + 1) * query);
        dk = rows(r.dk_block, n * key, (n + 1) * key);
        dv = rows(r.dv_block, n * key, (n + 1) * key);
        lse = rows(r.lse, n * heads, (n + 1) * heads);
    }

    bool operator==(const BlockResults&) const = default;
};

/// Changes the values of tokens [begin, end) of a tensor with `width` elements a token.
void scramble(std::vector<Bf16>& x, std::int64_t begin, std::int64_t end, std::int64_t width) {
    for (std::int64_t i = begin * width; i < end * width; ++i) {
        x[static_cast<std::size_t>(i)] = to_bf16(static_cast<float>(i % 97) * 0.25f - 11.0f);
    }
}

}  // namespace

TEST_SUITE("kernels.attention.properties") {
    TEST_CASE("context at or after the anchor changes nothing for a block") {
        for (const AttentionShape& shape : {kFull, kSliding}) {
            const AttentionCase c = three_documents(shape, 11);
            const AttentionInputs in = make_inputs(c);
            const DeviceResults before = run_attention(c, in);
            const std::int64_t width = c.num_key_heads * shape.head_dim;
            for (const std::int64_t n : {std::int64_t{3}, std::int64_t{10}, c.num_blocks() - 2}) {
                CAPTURE(n);
                const std::int64_t anchor = c.anchors[static_cast<std::size_t>(n)];
                AttentionInputs changed = in;
                scramble(changed.k_context, anchor, c.num_tokens, width);
                scramble(changed.v_context, anchor, c.num_tokens, width);
                const DeviceResults after = run_attention(c, changed);
                CHECK(BlockResults(c, before, n) == BlockResults(c, after, n));
                CHECK(before.o != after.o);
            }
        }
    }

    TEST_CASE("the last context row before the anchor changes every row of the block") {
        const AttentionCase c = three_documents(kFull, 12);
        AttentionInputs in = make_inputs(c);
        const DeviceResults before = run_attention(c, in);
        std::size_t n = 5;
        while (c.anchors[n] == c.context_begin[n]) {
            ++n;
        }
        const std::int64_t width = c.num_key_heads * c.shape.head_dim;
        scramble(in.v_context, c.anchors[n] - 1, c.anchors[n], width);
        const DeviceResults after = run_attention(c, in);
        const std::int64_t row = c.shape.head_dim;
        const std::int64_t first =
            static_cast<std::int64_t>(n) * c.shape.block_size * c.num_query_heads();
        for (std::int64_t i = 0; i < c.shape.block_size * c.num_query_heads(); ++i) {
            CHECK(rows(before.o, (first + i) * row, (first + i + 1) * row) !=
                  rows(after.o, (first + i) * row, (first + i + 1) * row));
        }
    }

    TEST_CASE("another document changes nothing") {
        for (const AttentionShape& shape : {kFull, kSliding}) {
            const AttentionCase c = three_documents(shape, 13);
            const AttentionInputs in = make_inputs(c);
            const DeviceResults before = run_attention(c, in);
            AttentionInputs changed = in;
            const std::int64_t width = c.num_key_heads * shape.head_dim;
            scramble(changed.k_context, 90, 220, width);
            scramble(changed.v_context, 90, 220, width);
            const DeviceResults after = run_attention(c, changed);
            std::int64_t compared = 0;
            for (std::int64_t n = 0; n < c.num_blocks(); ++n) {
                if (c.context_begin[static_cast<std::size_t>(n)] != 90) {
                    CHECK(BlockResults(c, before, n) == BlockResults(c, after, n));
                    ++compared;
                }
            }
            CHECK(compared >= 12);
            for (const auto& [begin, end] : {std::pair{0, 90}, std::pair{220, 300}}) {
                CHECK(rows(before.dk_context, begin * width, end * width) ==
                      rows(after.dk_context, begin * width, end * width));
                CHECK(rows(before.dv_context, begin * width, end * width) ==
                      rows(after.dv_context, begin * width, end * width));
            }
        }
    }

    TEST_CASE("another block changes nothing") {
        for (const AttentionShape& shape : {kFull, kSliding}) {
            const AttentionCase c = three_documents(shape, 14);
            const AttentionInputs in = make_inputs(c);
            const DeviceResults before = run_attention(c, in);
            const std::int64_t changed_block = 9;
            AttentionInputs changed = in;
            const std::int64_t begin = changed_block * shape.block_size;
            const std::int64_t end = begin + shape.block_size;
            const std::int64_t width = c.num_key_heads * shape.head_dim;
            scramble(changed.k_block, begin, end, width);
            scramble(changed.v_block, begin, end, width);
            scramble(changed.q, begin, end, width * shape.group);
            scramble(changed.d_o, begin, end, width * shape.group);
            const DeviceResults after = run_attention(c, changed);
            for (std::int64_t n = 0; n < c.num_blocks(); ++n) {
                CAPTURE(n);
                CHECK((BlockResults(c, before, n) == BlockResults(c, after, n)) ==
                      (n != changed_block));
            }
        }
    }

    TEST_CASE("a document alone gives what it gives in a packed row") {
        for (const AttentionShape& shape : {kFull, kSliding}) {
            const AttentionCase c = three_documents(shape, 15);
            const AttentionInputs in = make_inputs(c);
            const DeviceResults packed = run_attention(c, in);
            // The second document, tokens 90 to 219.
            AttentionCase alone = c;
            alone.anchors.clear();
            alone.context_begin.clear();
            std::int64_t first = -1;
            for (std::int64_t n = 0; n < c.num_blocks(); ++n) {
                if (c.context_begin[static_cast<std::size_t>(n)] == 90) {
                    first = first < 0 ? n : first;
                    alone.anchors.push_back(c.anchors[static_cast<std::size_t>(n)] - 90);
                    alone.context_begin.push_back(0);
                }
            }
            alone.num_tokens = 130;
            const std::int64_t width = c.num_key_heads * shape.head_dim;
            const std::int64_t begin = first * shape.block_size;
            const std::int64_t end = begin + alone.block_tokens();
            AttentionInputs part;
            part.q = rows(in.q, begin * width * shape.group, end * width * shape.group);
            part.d_o = rows(in.d_o, begin * width * shape.group, end * width * shape.group);
            part.k_block = rows(in.k_block, begin * width, end * width);
            part.v_block = rows(in.v_block, begin * width, end * width);
            part.k_context = rows(in.k_context, 90 * width, 220 * width);
            part.v_context = rows(in.v_context, 90 * width, 220 * width);
            const DeviceResults single = run_attention(alone, part, Layout::Dense);
            for (std::int64_t n = 0; n < alone.num_blocks(); ++n) {
                CHECK(BlockResults(c, packed, first + n) == BlockResults(alone, single, n));
            }
            CHECK(single.dk_context == rows(packed.dk_context, 90 * width, 220 * width));
            CHECK(single.dv_context == rows(packed.dv_context, 90 * width, 220 * width));
        }
    }

    TEST_CASE("a thousand runs give one result") {
        for (const AttentionShape& shape : {kFull, kSliding}) {
            const AttentionCase c =
                make_case(shape, 2, 200, 10, {0, 90}, shape.windowed ? 60 : 0, 16);
            DeviceAttention attention(c, make_inputs(c), Layout::Dense);
            attention.forward();
            attention.backward();
            const DeviceResults first = attention.fetch();
            int different = 0;
            for (int run = 1; run < 1000; ++run) {
                attention.forward();
                attention.backward();
                different += attention.fetch() == first ? 0 : 1;
            }
            CHECK(different == 0);
        }
    }

    TEST_CASE("twice the gradient of the output gives twice every gradient") {
        const AttentionCase c = three_documents(kFull, 17);
        AttentionInputs in = make_inputs(c);
        const DeviceResults once = run_attention(c, in);
        const auto twice = [](std::vector<Bf16> x) {
            for (Bf16& value : x) {
                value = to_bf16(2 * from_bf16(value));
            }
            return x;
        };
        in.d_o = twice(in.d_o);
        const DeviceResults doubled = run_attention(c, in);
        CHECK(doubled.o == once.o);
        CHECK(doubled.dq == twice(once.dq));
        CHECK(doubled.dk_context == twice(once.dk_context));
        CHECK(doubled.dv_context == twice(once.dv_context));
        CHECK(doubled.dk_block == twice(once.dk_block));
        CHECK(doubled.dv_block == twice(once.dv_block));
    }

    TEST_CASE("the same value everywhere is the output") {
        const AttentionCase c = three_documents(kSliding, 18);
        AttentionInputs in = make_inputs(c);
        std::fill(in.v_context.begin(), in.v_context.end(), to_bf16(0.75f));
        std::fill(in.v_block.begin(), in.v_block.end(), to_bf16(0.75f));
        const DeviceResults got = run_attention(c, in);
        double largest = 0;
        for (const Bf16 value : got.o) {
            largest = std::max(largest, std::abs(double{from_bf16(value)} - 0.75));
        }
        CHECK(largest <= 0.75 / 256);
    }

    TEST_CASE("scores tied at the maximum are right") {
        // Mask tokens share one embedding, so keys that are equal are common; P is then exactly 1
        // for all of them before it is divided by the sum.
        AttentionCase c = three_documents(kFull, 19);
        AttentionInputs in = make_inputs(c);
        const std::int64_t width = c.num_key_heads * c.shape.head_dim;
        for (std::vector<Bf16>* keys : {&in.k_context, &in.k_block}) {
            const std::vector<Bf16> first = rows(in.k_block, 0, width);
            for (std::size_t i = 0; i < keys->size(); ++i) {
                (*keys)[i] = first[i % first.size()];
            }
        }
        const AttentionResults got = run_attention(c, in).values();
        const AttentionResults exact = exact_attention(c, in);
        const AttentionResults naive = naive_bf16_attention(c, in);
        // All scores of a row are equal, so S and its gradient's sum vanish: O, LSE and dV remain.
        for (const std::size_t output : {0u, 1u, 4u, 6u}) {
            CAPTURE(AttentionResults::kNames[output]);
            const double error = relative_error(*got.all()[output], *exact.all()[output]);
            CHECK(error <= 2 * relative_error(*naive.all()[output], *exact.all()[output]) + 1e-5);
            // Rounding is not biased: with bf16 results, half a unit in the last place at most.
            CHECK(error <= 1.0 / 256);
        }
    }

    TEST_CASE("a row without blocks gets zeros for its context") {
        AttentionCase c;
        c.shape = kFull;
        c.num_key_heads = 2;
        c.num_tokens = 100;
        const DeviceResults got = run_attention(c, make_inputs(c));
        CHECK(got.o.empty());
        const auto zero = [](Bf16 value) { return value == 0; };
        CHECK(std::all_of(got.dk_context.begin(), got.dk_context.end(), zero));
        CHECK(std::all_of(got.dv_context.begin(), got.dv_context.end(), zero));
    }

    TEST_CASE("offsets beyond 32 bits are right") {
        // Context rows 4 MiB apart: 2,100 of them are 8.8 GB, 4.4 billion elements.
        const AttentionShape shape{.head_dim = 64, .group = 1, .block_size = 8};
        const AttentionCase c = make_case(shape, 1, 2100, 12, {0}, 0, 20);
        const AttentionInputs in = make_inputs(c);
        const DeviceResults dense = run_attention(c, in, Layout::Dense);

        constexpr std::int64_t kStride = std::int64_t{1} << 21;
        const std::size_t pitch = kStride * sizeof(Bf16);
        const std::size_t width = 64 * sizeof(Bf16);
        void* wide = nullptr;
        if (cudaMalloc(&wide, 2100 * pitch) != cudaSuccess) {
            cudaGetLastError();
            MESSAGE("not run: no 8.8 GB of GPU memory are free");
            return;
        }
        gpu::check(cudaMemcpy2D(
            wide, pitch, in.k_context.data(), width, width, 2100, cudaMemcpyHostToDevice));
        DeviceAttention attention(c, in, Layout::Dense);
        attention.replace_context_keys({wide, kStride, 64});
        attention.forward();
        attention.backward();
        CHECK(attention.fetch() == dense);
        cudaFree(wide);
    }
}

}  // namespace dflash::kernels::test
