// SPDX-License-Identifier: Apache-2.0
#include "../../src/target/attention.hpp"

#include <ATen/ATen.h>
#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <cmath>
#include <doctest/doctest.h>
#include <memory>
#include <vector>

namespace dflash::target {
namespace {

// One token at a time, in double.
at::Tensor by_definition(const at::Tensor& q_TND,
                         const at::Tensor& k_TGD,
                         const at::Tensor& v_TGD,
                         const std::vector<std::int32_t>& starts) {
    const at::Tensor q = q_TND.to(at::kDouble);
    const at::Tensor k = k_TGD.to(at::kDouble);
    const at::Tensor v = v_TGD.to(at::kDouble);
    at::Tensor out = at::zeros_like(q);
    const std::int64_t group = q.size(1) / k.size(1);
    for (std::size_t document = 0; document + 1 < starts.size(); ++document) {
        for (std::int64_t t = starts[document]; t < starts[document + 1]; ++t) {
            for (std::int64_t h = 0; h < q.size(1); ++h) {
                const std::int64_t count = t - starts[document] + 1;
                const at::Tensor keys = k.select(1, h / group).narrow(0, starts[document], count);
                const at::Tensor values = v.select(1, h / group).narrow(0, starts[document], count);
                const at::Tensor scores =
                    keys.mv(q[t][h]) / std::sqrt(static_cast<double>(q.size(2)));
                out[t][h].copy_(values.t().mv(scores.softmax(0)));
            }
        }
    }
    return out;
}

// The largest single allocation of this thread while it is installed.
class AllocationWatch final : public c10::MemoryReportingInfoBase {
  public:
    void reportMemoryUsage(
        void*, std::int64_t size, std::size_t, std::size_t, c10::Device) override {
        largest = std::max(largest, size);
    }

    bool memoryProfilingEnabled() const override { return true; }

    std::int64_t largest = 0;
};

}  // namespace

TEST_SUITE("target.attention") {
    TEST_CASE(
        "attention: packed documents, grouped heads and strided views agree with the "
        "definition") {
        struct Case {
            std::int64_t query_heads;
            std::int64_t key_heads;
            std::int64_t head_dim;
            std::vector<std::int32_t> starts;
        };

        const std::vector<Case> cases = {
            {4, 2, 32, {0, 1}},
            {4, 2, 32, {0, 1, 2, 5}},
            {9, 3, 64, {0, 63, 127, 192}},
            {6, 6, 16, {0, 130}},
            {8, 1, 64, {0, 17, 17, 300}},  // an empty document between
        };
        at::manual_seed(7);
        for (const Case& c : cases) {
            CAPTURE(c.query_heads);
            CAPTURE(c.starts.size());
            const std::int64_t tokens = c.starts.back();
            // Columns as a fused projection leaves them.
            const at::Tensor qkv = at::randn({tokens, c.query_heads + 2 * c.key_heads, c.head_dim});
            const at::Tensor q = qkv.narrow(1, 0, c.query_heads);
            const at::Tensor k = qkv.narrow(1, c.query_heads, c.key_heads);
            const at::Tensor v = qkv.narrow(1, c.query_heads + c.key_heads, c.key_heads);
            at::Tensor out = at::full({tokens, c.query_heads, c.head_dim}, NAN);
            packed_causal_attention(out, q, k, v, PackedLayout(c.starts, at::kCPU));
            const double error =
                (out.to(at::kDouble) - by_definition(q, k, v, c.starts)).abs().max().item<double>();
            CHECK(error < 2e-6);
        }
    }

    TEST_CASE("attention: no allocation grows with the square of a document") {
        const std::int64_t tokens = 3000;
        const std::vector<std::int32_t> starts = {0, static_cast<std::int32_t>(tokens)};
        const at::Tensor qkv = at::randn({tokens, 6, 16});
        const at::Tensor out = at::empty({tokens, 2, 16});
        const PackedLayout layout(starts, at::kCPU);
        const auto watch = std::make_shared<AllocationWatch>();
        {
            const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, watch);
            packed_causal_attention(
                out, qkv.narrow(1, 0, 2), qkv.narrow(1, 2, 2), qkv.narrow(1, 4, 2), layout);
        }
        CHECK(watch->largest > 0);
        // Tiles of 256 x 512 scores with their sums per thread; the output is [3000, 2, 16].
        CHECK(watch->largest < 2 * 1024 * 1024);
    }
}

}  // namespace dflash::target
