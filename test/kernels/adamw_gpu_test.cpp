// SPDX-License-Identifier: Apache-2.0
#include "rows/device_array.hpp"
#include "rows/device_rows.hpp"

#include <dflash/core/error.hpp>
#include <dflash/kernels/adamw.hpp>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <doctest/doctest.h>
#include <limits>
#include <vector>

namespace dflash::kernels {
namespace {

using test::DeviceArray;
using test::random_rows;
using test::row_kernels;

std::vector<float> random_floats(std::uint64_t id, std::int64_t count, double scale) {
    const std::vector<double> values = random_rows(id, count, Element::Float32, scale);
    return {values.begin(), values.end()};
}

AdamWKernels kernels_of_adamw() {
    row_kernels().prepare(adamw_kernels());
    return {row_kernels().get(gradient_norm_kernel()),
            row_kernels().get(adamw_decision_kernel()),
            row_kernels().get(adamw_update_kernel())};
}

/// Everything that a step changes.
struct Buffers {
    std::vector<float> master;
    std::vector<float> exp_avg;
    std::vector<float> exp_avg_sq;
    std::vector<std::uint16_t> weight;
    float steps = 0;

    bool operator==(const Buffers&) const = default;
};

class Optimizer {
  public:
    Optimizer(const std::vector<NormPiece>& pieces, const std::vector<float>& master)
        : schedule_(make_norm_schedule(pieces)),
          count_(static_cast<std::int64_t>(master.size())),
          chunks_(schedule_.chunks),
          first_chunk_(schedule_.first_chunk),
          squares_(DeviceArray<double>::poison(schedule_.chunks.size() / 2)),
          factors_(DeviceArray<double>::poison(kAdamWFactorBytes / sizeof(double))),
          norm_(DeviceArray<double>::poison(1)),
          piece_norms_(DeviceArray<double>::poison(pieces.size())),
          gradient_(DeviceArray<float>::poison(master.size())),
          master_(master),
          exp_avg_(std::vector<float>(master.size())),
          exp_avg_sq_(std::vector<float>(master.size())),
          weight_(DeviceArray<std::uint16_t>::poison(master.size())),
          steps_({0}) {}

    void step(const std::vector<float>& gradient, const AdamWRule& rule, bool rounded = true) {
        gradient_.set(gradient);
        adamw_step(kernels_of_adamw(),
                   {.chunks = chunks_.get(),
                    .first_chunk = first_chunk_.get(),
                    .num_chunks = static_cast<std::int64_t>(schedule_.chunks.size() / 2),
                    .num_pieces = static_cast<std::int64_t>(schedule_.first_chunk.size()) - 1,
                    .squares = squares_.get(),
                    .factors = factors_.get(),
                    .norm = norm_.get(),
                    .piece_norms_N = piece_norms_.get(),
                    .steps = steps_.get()},
                   {.gradient_P = gradient_.get(),
                    .master_P = master_.get(),
                    .exp_avg_P = exp_avg_.get(),
                    .exp_avg_sq_P = exp_avg_sq_.get(),
                    .weight_P = rounded ? weight_.get() : nullptr},
                   rule,
                   count_,
                   row_kernels().stream());
        CHECK(gradient_.fetch().size() == gradient.size());
    }

    Buffers buffers() const {
        return {master_.fetch(),
                exp_avg_.fetch(),
                exp_avg_sq_.fetch(),
                weight_.fetch(),
                steps_.fetch().front()};
    }

    double norm() const { return norm_.fetch().front(); }

    std::vector<double> piece_norms() const { return piece_norms_.fetch(); }

  private:
    NormSchedule schedule_;
    std::int64_t count_;
    DeviceArray<std::int64_t> chunks_;
    DeviceArray<std::int32_t> first_chunk_;
    DeviceArray<double> squares_;
    DeviceArray<double> factors_;
    DeviceArray<double> norm_;
    DeviceArray<double> piece_norms_;
    DeviceArray<float> gradient_;
    DeviceArray<float> master_;
    DeviceArray<float> exp_avg_;
    DeviceArray<float> exp_avg_sq_;
    DeviceArray<std::uint16_t> weight_;
    DeviceArray<float> steps_;
};

/// The update in fp64 on state that is kept in fp32, as the kernels keep it.
struct Reference {
    std::vector<double> w, m, v;

    explicit Reference(const std::vector<float>& master)
        : w(master.begin(), master.end()), m(master.size()), v(master.size()) {}

    void step(const std::vector<float>& gradient, const AdamWRule& rule, double norm, int t) {
        const double clip = rule.clip > 0 ? std::min(1.0, rule.clip / (norm + 1e-6)) : 1.0;
        for (std::size_t i = 0; i < w.size(); ++i) {
            const double g = double{gradient[i]} * rule.scale * clip;
            m[i] = rule.beta1 * m[i] + (1 - rule.beta1) * g;
            v[i] = rule.beta2 * v[i] + (1 - rule.beta2) * g * g;
            const double m_hat = m[i] / (1 - std::pow(rule.beta1, t));
            const double v_hat = v[i] / (1 - std::pow(rule.beta2, t));
            w[i] = w[i] * (1 - rule.learning_rate * rule.weight_decay) -
                   rule.learning_rate * m_hat / (std::sqrt(v_hat) + rule.eps);
        }
    }
};

double norm_of(const std::vector<float>& values, std::int64_t begin, std::int64_t count) {
    double sum = 0;
    for (std::int64_t i = begin; i < begin + count; ++i) {
        const double x = values[static_cast<std::size_t>(i)];
        sum += x * x;
    }
    return std::sqrt(sum);
}

std::uint16_t to_bf16(float x) {
    const double rounded = test::round_to_bf16(x);
    return static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(static_cast<float>(rounded)) >>
                                      16);
}

void check_close(const std::vector<float>& got, const std::vector<double>& expected, double unit) {
    double worst = 0;
    for (std::size_t i = 0; i < got.size(); ++i) {
        const double bound = std::max(std::abs(expected[i]), unit);
        worst = std::max(worst, std::abs(double{got[i]} - expected[i]) / bound);
    }
    CHECK(worst < 3e-6);
}

/// Pieces of odd sizes at odd places, of which the last has more than two chunks if it is long.
std::vector<NormPiece> pieces_of(std::int64_t count) {
    std::vector<NormPiece> pieces;
    std::int64_t begin = 0;
    for (const std::int64_t size : {std::int64_t{1}, std::int64_t{2}, std::int64_t{70003}}) {
        const std::int64_t taken = std::min(size, count - begin);
        if (taken > 0) {
            pieces.push_back({begin, taken});
            begin += taken;
        }
    }
    if (begin < count) {
        pieces.push_back({begin, count - begin});
    }
    return pieces;
}

const AdamWRule kRule{.beta1 = 0.9,
                      .beta2 = 0.95,
                      .eps = 1e-8,
                      .weight_decay = 0.1,
                      .clip = 1.0,
                      .scale = 0.25,
                      .learning_rate = 1e-2};

TEST_SUITE("kernels.adamw") {
    TEST_CASE("steps are those of fp64, with clipping and without, for odd sizes") {
        for (const std::int64_t count : {1, 3, 4, 1027, 70006, 300001}) {
            for (const double clip : {0.0, 1.0, 1e9}) {
                CAPTURE(count);
                CAPTURE(clip);
                AdamWRule rule = kRule;
                rule.clip = clip;
                const std::vector<float> start = random_floats(1, count, 1);
                const std::vector<NormPiece> pieces = pieces_of(count);
                Optimizer optimizer(pieces, start);
                Reference exact(start);
                for (int t = 1; t <= 4; ++t) {
                    rule.learning_rate = 1e-2 * t;
                    const std::vector<float> gradient =
                        random_floats(10 + static_cast<std::uint64_t>(t), count, 0.3);
                    optimizer.step(gradient, rule);
                    const double norm = rule.scale * norm_of(gradient, 0, count);
                    CHECK(optimizer.norm() == doctest::Approx(norm).epsilon(1e-12));
                    const std::vector<double> norms = optimizer.piece_norms();
                    for (std::size_t i = 0; i < pieces.size(); ++i) {
                        CHECK(norms[i] ==
                              doctest::Approx(norm_of(gradient, pieces[i].begin, pieces[i].count))
                                  .epsilon(1e-12));
                    }
                    exact.step(gradient, rule, norm, t);
                }
                const Buffers got = optimizer.buffers();
                CHECK(got.steps == 4);
                // Sums of terms of either sign, as large as the learning rates, which add up to
                // 0.1, and as a tenth of the gradient: 0.0075.
                check_close(got.master, exact.w, 0.1);
                check_close(got.exp_avg, exact.m, 1e-2);
                check_close(got.exp_avg_sq, exact.v, 1e-6);
                for (std::size_t i = 0; i < got.master.size(); ++i) {
                    REQUIRE(got.weight[i] == to_bf16(got.master[i]));
                }
            }
        }
    }

    TEST_CASE("a gradient that is not finite anywhere changes nothing but the norms") {
        constexpr std::int64_t kCount = 150001;
        const std::vector<NormPiece> pieces = pieces_of(kCount);
        Optimizer optimizer(pieces, random_floats(1, kCount, 1));
        optimizer.step(random_floats(2, kCount, 0.3), kRule);
        const Buffers before = optimizer.buffers();
        for (const float bad : {std::numeric_limits<float>::quiet_NaN(),
                                std::numeric_limits<float>::infinity(),
                                -std::numeric_limits<float>::infinity()}) {
            for (const std::int64_t place : {0, 1, 2, 3, 65538, 70005, 70006, 150000}) {
                CAPTURE(place);
                std::vector<float> gradient = random_floats(3, kCount, 0.3);
                gradient[static_cast<std::size_t>(place)] = bad;
                optimizer.step(gradient, kRule);
                CHECK_FALSE(std::isfinite(optimizer.norm()));
                const std::vector<double> norms = optimizer.piece_norms();
                for (std::size_t i = 0; i < pieces.size(); ++i) {
                    const bool inside =
                        place >= pieces[i].begin && place < pieces[i].begin + pieces[i].count;
                    CHECK(std::isfinite(norms[i]) == !inside);
                }
                CHECK(optimizer.buffers() == before);
            }
        }
        // Also where the sums are scaled by zero: a step without labels.
        AdamWRule nothing = kRule;
        nothing.scale = 0;
        std::vector<float> gradient(kCount);
        gradient[5] = std::numeric_limits<float>::infinity();
        optimizer.step(gradient, nothing);
        CHECK(optimizer.buffers() == before);
    }

    TEST_CASE("the largest finite gradient is no reason to skip") {
        constexpr std::int64_t kCount = 70000;
        Optimizer optimizer(pieces_of(kCount), random_floats(1, kCount, 1));
        AdamWRule rule = kRule;
        rule.scale = 1;
        optimizer.step(std::vector<float>(kCount, std::numeric_limits<float>::max()), rule);
        const Buffers got = optimizer.buffers();
        CHECK(got.steps == 1);
        CHECK(std::isfinite(optimizer.norm()));
        CHECK(std::all_of(
            got.master.begin(), got.master.end(), [](float x) { return std::isfinite(x); }));
    }

    TEST_CASE("the same gradients give the same bits, with bf16 weights and without") {
        constexpr std::int64_t kCount = 1234567;
        const std::vector<float> start = random_floats(1, kCount, 1);
        const auto run = [&](bool rounded) {
            Optimizer optimizer(pieces_of(kCount), start);
            for (std::uint64_t t = 1; t <= 3; ++t) {
                optimizer.step(random_floats(20 + t, kCount, 0.3), kRule, rounded);
            }
            return optimizer.buffers();
        };
        const Buffers first = run(true);
        CHECK(run(true) == first);
        Buffers without = run(false);
        CHECK(without.weight == DeviceArray<std::uint16_t>::poison(kCount));
        without.weight = first.weight;
        CHECK(without == first);
    }

    TEST_CASE("buffers that vectors do not fit into are refused") {
        const DeviceArray<float> memory(std::vector<float>(16));
        AdamWTensors tensors{memory.get(), memory.get(), memory.get(), memory.get() + 1, nullptr};
        CHECK_THROWS_AS(
            adamw_step(kernels_of_adamw(), {}, tensors, kRule, 4, row_kernels().stream()), Error);
    }
}

}  // namespace
}  // namespace dflash::kernels
