// SPDX-License-Identifier: Apache-2.0
#include "reference.hpp"

#include <dflash/model/loss_weights.hpp>

#include <cmath>
#include <doctest/doctest.h>
#include <vector>

namespace dflash::model {
namespace {

constexpr std::int64_t kBlocks = 7;
constexpr std::int64_t kSize = 8;

/// Head rows with gaps, blocks of one row and a block without any; their losses.
struct Rows {
    std::vector<std::int64_t> head_rows;
    at::Tensor head_row_R;
    at::Tensor cross_entropy_R;

    Rows() {
        for (std::int64_t n = 0; n < kBlocks; ++n) {
            for (std::int64_t k = 1; k < kSize; ++k) {
                const bool counts = n == 2 ? false : n == 4 ? k == 5 : (n * k * 7 + k) % 4 != 3;
                if (counts) {
                    head_rows.push_back(n * kSize + k);
                }
            }
        }
        at::manual_seed(3);
        head_row_R = at::tensor(head_rows, at::kLong);
        cross_entropy_R = at::rand({head_row_R.numel()}, at::kDouble).square_().mul_(9);
    }
};

/// The formulas, slot by slot.
double weight_by_hand(const Rows& rows, std::size_t r, const LossWeights& weights) {
    const std::int64_t block = rows.head_rows[r] / kSize;
    double before = 1;
    double behind = 0;
    double product = 1;
    for (std::size_t i = 0; i < rows.head_rows.size(); ++i) {
        if (rows.head_rows[i] / kSize != block) {
            continue;
        }
        const double q =
            std::exp(-rows.cross_entropy_R[static_cast<std::int64_t>(i)].item<double>());
        const double blended = (1 - weights.alpha) * q + weights.alpha;
        if (i <= r) {
            before *= blended;
        } else {
            product *= blended;
        }
        behind += i >= r ? product : 0;
    }
    return (weights.kind == SlotWeighting::DpaceSuffix ? 1 : before) *
           (weights.kind == SlotWeighting::DpacePrefix ? 1 : behind);
}

TEST_SUITE("model.loss_weights") {
    TEST_CASE("D-PACE and its parts are products over the slots that count") {
        const Rows rows;
        for (const SlotWeighting kind :
             {SlotWeighting::Dpace, SlotWeighting::DpacePrefix, SlotWeighting::DpaceSuffix}) {
            for (const double alpha : {0.0, 0.3, 0.5, 1.0}) {
                const LossWeights weights{.kind = kind, .alpha = alpha};
                CAPTURE(static_cast<int>(kind));
                CAPTURE(alpha);
                const at::Tensor got =
                    dpace_weights(weights, rows.cross_entropy_R, rows.head_row_R, kBlocks, kSize);
                REQUIRE(got.numel() == rows.head_row_R.numel());
                for (std::size_t r = 0; r < rows.head_rows.size(); ++r) {
                    CAPTURE(rows.head_rows[r]);
                    CHECK(got[static_cast<std::int64_t>(r)].item<double>() ==
                          doctest::Approx(weight_by_hand(rows, r, weights)).epsilon(1e-12));
                }
            }
        }
    }

    TEST_CASE("labels without any probability in fp64 leave finite weights") {
        const Rows rows;
        const at::Tensor hopeless = at::full_like(rows.cross_entropy_R, 400.0);
        for (const SlotWeighting kind :
             {SlotWeighting::Dpace, SlotWeighting::DpacePrefix, SlotWeighting::DpaceSuffix}) {
            for (const double alpha : {0.0, 0.5}) {
                CHECK(dpace_weights({kind, alpha}, hopeless, rows.head_row_R, kBlocks, kSize)
                          .isfinite()
                          .all()
                          .item<bool>());
            }
        }
    }

    TEST_CASE("the divisor is the sum of packed weights, or the number of documents") {
        const DraftConfig config = small_config({LayerType::Full});
        const data::PackedRow row = make_row(config, {31, 4, 18}, {{0, 1, 9}, {1}, {0}});
        CHECK(loss_divisor({}, row) == row.blocks.weight_sum);
        for (const SlotWeighting kind :
             {SlotWeighting::Dpace, SlotWeighting::DpacePrefix, SlotWeighting::DpaceSuffix}) {
            CHECK(loss_divisor({kind, 0.5}, row) == 3);
        }
    }
}

}  // namespace
}  // namespace dflash::model
