// SPDX-License-Identifier: Apache-2.0
#include <dflash/tensor/step_graphs.hpp>

#include <algorithm>
#include <doctest/doctest.h>

namespace dflash::tensor {

TEST_SUITE("tensor.step_graphs") {
    TEST_CASE("every number of sequences has a graph of a size not far above it") {
        for (const std::int64_t slots : {1, 2, 7, 16, 100, 128, 300, 512}) {
            CAPTURE(slots);
            const std::vector<std::int64_t> sizes = graph_sizes(slots);
            CHECK(std::is_sorted(sizes.begin(), sizes.end()));
            CHECK(sizes.front() == 1);
            CHECK(sizes.back() == slots);
            CHECK(sizes.size() < 25);
            for (std::int64_t count = 1; count <= slots; ++count) {
                const auto size = *std::lower_bound(sizes.begin(), sizes.end(), count);
                CHECK(size <= std::max(2 * count - 1, std::int64_t{1}));
                CHECK(size <= count + std::max<std::int64_t>(15, count / 3));
            }
        }
    }

    TEST_CASE("without graphs a step is computed for as many rows as it has") {
        StepGraphs steps([](const at::Tensor& input_S2) { return input_S2.sum(1); });
        CHECK(steps.rows_for(5) == 5);
        const at::Tensor input = at::tensor({1, 2, 3, 4, 5, 6}, at::kInt).view({3, 2});
        CHECK(steps.run(input).equal(at::tensor({3, 7, 11}, at::kLong)));
        steps.fix_sizes(6);
        CHECK(steps.rows_for(3) == 4);
        CHECK(steps.rows_for(4) == 4);
        CHECK(steps.rows_for(5) == 6);
    }
}

}  // namespace dflash::tensor
