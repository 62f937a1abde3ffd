// SPDX-License-Identifier: Apache-2.0
#include "reference.hpp"

#include <dflash/core/error.hpp>
#include <dflash/model/tiled_attention.hpp>

#include <doctest/doctest.h>

namespace dflash::model {
namespace {

struct Case {
    std::vector<std::int32_t> lengths;
    std::vector<std::vector<std::int32_t>> anchors;
    std::int64_t B;
    std::int64_t K;
    std::int64_t G;
    std::int64_t d;
};

/// Documents of all sizes, anchors at both ends, empty contexts, every group size from 1 to 8.
const std::vector<Case>& cases() {
    static const std::vector<Case> all{
        {{1}, {{0}}, 2, 1, 1, 2},
        {{70}, {{0, 1, 2, 33, 34, 68, 69}}, 3, 2, 3, 6},
        {{5, 40, 3}, {{0, 4}, {0, 17, 39}, {2}}, 8, 1, 8, 4},
        {{9, 31, 31}, {{}, {3, 4, 5, 30}, {0, 30}}, 32, 3, 1, 10},
        {{120, 2}, {{7, 9, 64, 65, 66, 100, 119}, {1}}, 5, 2, 2, 8},
        {{300}, {{0, 3, 40, 41, 42, 43, 250, 299}}, 4, 1, 5, 6},
    };
    return all;
}

const std::vector<AttentionMask>& masks() {
    static const std::vector<AttentionMask> all{{false, 0},
                                                {true, 0},
                                                {true, 1},
                                                {true, 3},
                                                {true, 16},
                                                {false, 2},
                                                {false, 20},
                                                {true, 1000}};
    return all;
}

data::PackedRow row_of(const Case& c) {
    DraftConfig config = small_config({LayerType::Full}, c.B);
    return make_row(config, c.lengths, c.anchors);
}

AttentionInputs random_inputs(const Case& c, const data::PackedRow& row, at::ScalarType dtype) {
    at::manual_seed(21);
    const std::int64_t M = row.blocks.num_blocks() * c.B;
    const std::int64_t T = row.num_tokens();
    // Keys and values are views into wider rows, as in the drafter.
    const auto random = [&](std::int64_t rows, std::int64_t heads) {
        return (at::randn({rows, heads + 1, c.d}, at::kDouble) * 1.5).to(dtype).narrow(1, 1, heads);
    };
    return {random(M, c.K * c.G), random(T, c.K), random(T, c.K), random(M, c.K), random(M, c.K)};
}

AttentionOutputs run(TiledAttention& attention,
                     const Case& c,
                     const data::PackedRow& row,
                     const AttentionInputs& in,
                     const AttentionMask& mask) {
    attention.set_row(row.blocks, row.num_tokens());
    const at::ScalarType sum = in.q_MQd.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
    AttentionOutputs out{.o_MQd = at::empty(in.q_MQd.sizes(), in.q_MQd.options()),
                         .o_rest_MQd = {},
                         .lse_MQ = at::empty({in.q_MQd.size(0), c.K * c.G}, sum)};
    if (in.q_MQd.scalar_type() == at::kBFloat16) {
        out.o_rest_MQd = at::empty_like(out.o_MQd);
    }
    attention.forward(in, mask, out);
    return out;
}

TEST_SUITE("model.attention") {
    TEST_CASE("equals a softmax with a mask made pair by pair, whatever the tiles") {
        for (std::size_t i = 0; i < cases().size(); ++i) {
            const Case& c = cases()[i];
            const data::PackedRow row = row_of(c);
            const AttentionInputs in = random_inputs(c, row, at::kDouble);
            const AttentionInputs in32{in.q_MQd.to(at::kFloat),
                                       in.k_context_TKd.to(at::kFloat),
                                       in.v_context_TKd.to(at::kFloat),
                                       in.k_block_MKd.to(at::kFloat),
                                       in.v_block_MKd.to(at::kFloat)};
            for (const AttentionMask& mask : masks()) {
                const ReferenceAttention expected = reference_attention(in, mask, row.blocks);
                for (const std::int64_t tile : {1, 700, 6000, 0}) {
                    CAPTURE(i);
                    CAPTURE(mask.causal);
                    CAPTURE(mask.window);
                    CAPTURE(tile);
                    TiledAttention attention(at::kCPU, tile);
                    const AttentionOutputs got = run(attention, c, row, in, mask);
                    CHECK(largest_error(got.o_MQd, expected.o_MQd) < 1e-13);
                    CHECK((got.lse_MQ - expected.lse_MQ).abs().max().item<double>() < 1e-12);
                    const AttentionOutputs got32 = run(attention, c, row, in32, mask);
                    CHECK(largest_error(got32.o_MQd, expected.o_MQd) < 4e-6);
                    CHECK((got32.lse_MQ - expected.lse_MQ).abs().max().item<double>() < 2e-5);
                }
            }
        }
    }

    TEST_CASE("bf16 inputs are summed in fp32") {
        const Case& c = cases()[4];
        const data::PackedRow row = row_of(c);
        const AttentionInputs in = random_inputs(c, row, at::kBFloat16);
        const AttentionInputs in64{in.q_MQd.to(at::kDouble),
                                   in.k_context_TKd.to(at::kDouble),
                                   in.v_context_TKd.to(at::kDouble),
                                   in.k_block_MKd.to(at::kDouble),
                                   in.v_block_MKd.to(at::kDouble)};
        for (const AttentionMask& mask : masks()) {
            CAPTURE(mask.causal);
            CAPTURE(mask.window);
            const ReferenceAttention expected = reference_attention(in64, mask, row.blocks);
            TiledAttention attention(at::kCPU, 3000);
            const AttentionOutputs got = run(attention, c, row, in, mask);
            // One rounding of P, one of the result.
            CHECK(largest_error(got.o_MQd, expected.o_MQd) < 0x1.0p-7);
            CHECK((got.lse_MQ - expected.lse_MQ).abs().max().item<double>() < 2e-5);
        }
    }

    TEST_CASE("many equal scores at the maximum give the mean of the values") {
        const Case& c = cases()[1];
        const data::PackedRow row = row_of(c);
        AttentionInputs in = random_inputs(c, row, at::kFloat);
        in.q_MQd.zero_();
        TiledAttention attention(at::kCPU, 500);
        const AttentionOutputs got = run(attention, c, row, in, {});
        const std::int64_t anchor = row.blocks.anchors[4];
        const at::Tensor mean =
            at::cat({in.v_context_TKd.narrow(0, 0, anchor), in.v_block_MKd.narrow(0, 4 * c.B, c.B)})
                .mean(0)
                .repeat_interleave(c.G, 0);
        CHECK(largest_error(got.o_MQd[4 * c.B], mean) < 1e-5);
    }

    TEST_CASE("far scores neither overflow nor lose the row") {
        const Case& c = cases()[4];
        const data::PackedRow row = row_of(c);
        AttentionInputs in = random_inputs(c, row, at::kFloat);
        in.q_MQd.mul_(300);
        TiledAttention attention(at::kCPU, 2000);
        const AttentionOutputs got = run(attention, c, row, in, {true, 16});
        CHECK(got.o_MQd.isfinite().all().item<bool>());
        CHECK(got.lse_MQ.isfinite().all().item<bool>());
    }

    TEST_CASE("a change at or past the anchor, in another block or document moves nothing") {
        const Case& c = cases()[2];
        const data::PackedRow row = row_of(c);
        const AttentionInputs in = random_inputs(c, row, at::kFloat);
        TiledAttention attention(at::kCPU);
        const std::int64_t block = 3;  // anchor 17 of the second document, row position 22
        const std::int64_t anchor = row.blocks.anchors[block];
        REQUIRE(anchor == 22);
        const auto moved = [&](const at::Tensor& changed, std::int64_t at) {
            const AttentionOutputs before = run(attention, c, row, in, {});
            changed[at].add_(1);
            const AttentionOutputs after = run(attention, c, row, in, {});
            changed[at].sub_(1);
            return !before.o_MQd.narrow(0, block * c.B, c.B)
                        .equal(after.o_MQd.narrow(0, block * c.B, c.B));
        };
        for (const at::Tensor& context : {in.k_context_TKd, in.v_context_TKd}) {
            CHECK(moved(context, anchor - 1));
            CHECK(moved(context, 5));  // first token of the document
            CHECK_FALSE(moved(context, anchor));
            CHECK_FALSE(moved(context, anchor + 1));
            CHECK_FALSE(moved(context, 4));  // last token of the document before
            CHECK_FALSE(moved(context, row.num_tokens() - 1));
        }
        for (const at::Tensor& keys : {in.k_block_MKd, in.v_block_MKd}) {
            CHECK(moved(keys, block * c.B + 5));
            CHECK_FALSE(moved(keys, (block - 1) * c.B + 5));
            CHECK_FALSE(moved(keys, (block + 1) * c.B));
        }
    }

    TEST_CASE("slot 5 moves slot 3 in a full layer, not in a causal one") {
        const Case& c = cases()[2];
        const data::PackedRow row = row_of(c);
        const AttentionInputs in = random_inputs(c, row, at::kFloat);
        TiledAttention attention(at::kCPU);
        for (const auto& [mask, moves] : {std::pair{AttentionMask{false, 0}, true},
                                          std::pair{AttentionMask{true, 16}, false},
                                          std::pair{AttentionMask{false, 16}, true},
                                          std::pair{AttentionMask{false, 2}, false}}) {
            CAPTURE(mask.causal);
            CAPTURE(mask.window);
            const AttentionOutputs before = run(attention, c, row, in, mask);
            in.v_block_MKd[5].add_(1);
            const AttentionOutputs after = run(attention, c, row, in, mask);
            in.v_block_MKd[5].sub_(1);
            CHECK(before.o_MQd[3].equal(after.o_MQd[3]) != moves);
            CHECK_FALSE(before.o_MQd[5].equal(after.o_MQd[5]));
        }
    }

    TEST_CASE("rows that break the order of anchors are internal errors") {
        TiledAttention attention(at::kCPU);
        data::PackedRow row = row_of(cases()[1]);
        std::swap(row.blocks.anchors[0], row.blocks.anchors[1]);
        CHECK_THROWS_AS(attention.set_row(row.blocks, 70), Error);
        std::swap(row.blocks.anchors[0], row.blocks.anchors[1]);
        CHECK_THROWS_AS(attention.set_row(row.blocks, 69), Error);
        attention.set_row(row.blocks, 70);
    }

    TEST_CASE("a row without blocks gives empty outputs and zero context gradients") {
        Case c = cases()[0];
        c.lengths = {4};
        c.anchors = {{}};
        const data::PackedRow row = row_of(c);
        const AttentionInputs in = random_inputs(c, row, at::kFloat);
        TiledAttention attention(at::kCPU);
        const AttentionOutputs got = run(attention, c, row, in, {});
        CHECK(got.o_MQd.numel() == 0);
        const at::Tensor dk = at::ones({4, 1, 2});
        const at::Tensor dv = at::ones({4, 1, 2});
        const at::Tensor none = at::empty({0, 1, 2});
        attention.backward(in, {}, got, none, {none, dk, dv, none, none});
        CHECK(dk.eq(0).all().item<bool>());
        CHECK(dv.eq(0).all().item<bool>());
    }
}

}  // namespace
}  // namespace dflash::model
