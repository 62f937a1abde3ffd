// SPDX-License-Identifier: Apache-2.0
#include <dflash/core/check.hpp>
#include <dflash/target/sampling.hpp>
#include <dflash/tensor/bridge.hpp>

#include <algorithm>
#include <bit>
#include <limits>
#include <vector>

namespace dflash::target {
namespace {

constexpr float kNothing = -std::numeric_limits<float>::infinity();

// Where sorted_RK (falling) holds the most probable tokens, the smallest one of the nucleus: the
// last whose predecessors hold less than p.
at::Tensor nucleus_edge_of_sorted(const at::Tensor& sorted_RK, const at::Tensor& p_R1) {
    const at::Tensor sums_RK = sorted_RK.cumsum(1, at::kDouble);
    const at::Tensor before_RK = sums_RK - sorted_RK;
    return at::where(before_RK < p_R1, sorted_RK, 2.0F).amin(1, /*keepdim=*/true);
}

// The same without an order: bisection over the bit patterns of fp32, which rise with the numbers,
// so that the edge is exact and no sorted copy of the vocabulary is made. Invariant: tokens of at
// least `low` hold p or more, those of at least `high` less.
at::Tensor nucleus_edge(const at::Tensor& probabilities_RV, const at::Tensor& p_R1) {
    const at::TensorOptions int32 = probabilities_RV.options().dtype(at::kInt);
    at::Tensor low_R1 = at::zeros({probabilities_RV.size(0), 1}, int32);
    at::Tensor high_R1 = at::full_like(low_R1, std::bit_cast<std::int32_t>(2.0F));
    for (int bit = 0; bit < 31; ++bit) {
        const at::Tensor middle_R1 = low_R1 + (high_R1 - low_R1).div(2, "floor");
        const at::Tensor held_R1 =
            at::where(probabilities_RV >= middle_R1.view(at::kFloat), probabilities_RV, 0.0F)
                .sum(1, /*keepdim=*/true, at::kDouble);
        const at::Tensor enough_R1 = held_R1 >= p_R1;
        low_R1 = at::where(enough_R1, middle_R1, low_R1);
        high_R1 = at::where(enough_R1, high_R1, middle_R1);
    }
    return low_R1.view(at::kFloat);
}

}  // namespace

SamplingRules::SamplingRules(std::span<const Sampling> rules_R, at::Device device)
    : size_(static_cast<std::int64_t>(rules_R.size())) {
    std::vector<float> temperatures;
    std::vector<std::int64_t> ks;
    std::vector<float> ps;
    std::vector<std::int32_t> greedy;
    for (const Sampling& rule : rules_R) {
        DFLASH_CHECK(rule.temperature >= 0 && rule.top_p > 0 && rule.top_p <= 1 && rule.top_k >= 0,
                     "sampling with temperature {}, top_p {}, top_k {}",
                     rule.temperature,
                     rule.top_p,
                     rule.top_k);
        const bool top_p = !rule.greedy() && rule.top_p < 1;
        const std::int64_t k = rule.greedy() ? 0 : rule.top_k;
        all_greedy_ &= rule.greedy();
        any_greedy_ |= rule.greedy();
        any_top_p_ |= top_p;
        all_top_p_have_k_ &= !top_p || k > 0;
        largest_k_ = std::max(largest_k_, k);
        temperatures.push_back(rule.greedy() ? 1.0F : static_cast<float>(rule.temperature));
        ks.push_back(k);
        ps.push_back(top_p ? static_cast<float>(rule.top_p) : 1.0F);
        greedy.push_back(rule.greedy() ? 1 : 0);
    }
    if (all_greedy_) {
        return;
    }
    const auto column = [&](const auto& values) {
        return tensor::upload(std::span(std::as_const(values)), device).unsqueeze(1);
    };
    temperatures_R1_ = column(temperatures);
    k_R1_ = column(ks);
    p_R1_ = column(ps);
    greedy_R1_ = column(greedy) == 1;
}

at::Tensor SamplingRules::probabilities(const at::Tensor& logits_RV) const {
    tensor::expect_shape(logits_RV, {size_, tensor::kAny}, "logits");
    tensor::expect_dtype(logits_RV, at::kFloat, "logits");
    const std::int64_t vocab = logits_RV.size(1);
    if (all_greedy_) {
        return at::zeros_like(logits_RV).scatter_(1, logits_RV.argmax(1, /*keepdim=*/true), 1.0);
    }
    at::Tensor scaled_RV = logits_RV / temperatures_R1_;
    const std::int64_t k = std::min(largest_k_, vocab);
    at::Tensor head_RK;  // ids of the k largest, falling
    if (k > 0) {
        const at::Tensor place_R1 = (k_R1_.clamp_max(k) - 1).clamp_min(0);
        auto [largest_RK, ids_RK] = scaled_RV.topk(k, 1);
        const at::Tensor edge_R1 = at::where(k_R1_ > 0, largest_RK.gather(1, place_R1), kNothing);
        scaled_RV.masked_fill_(scaled_RV < edge_R1, kNothing);
        head_RK = ids_RK;
    }
    at::Tensor probabilities_RV = scaled_RV.softmax(1);
    if (any_top_p_) {
        // With a top-k the sorted head has all that is left, but for tokens that equal its last
        // one; those decide nothing, since its edge is theirs.
        const at::Tensor edge_R1 =
            all_top_p_have_k_ ? nucleus_edge_of_sorted(probabilities_RV.gather(1, head_RK), p_R1_)
                              : nucleus_edge(probabilities_RV, p_R1_);
        scaled_RV.masked_fill_((probabilities_RV < edge_R1).logical_and_(p_R1_ < 1), kNothing);
        probabilities_RV = scaled_RV.softmax(1);
    }
    if (any_greedy_) {
        const at::Tensor best_R1 = logits_RV.argmax(1, /*keepdim=*/true);
        probabilities_RV.masked_fill_(greedy_R1_, 0.0);
        probabilities_RV.scatter_(
            1, best_R1, at::where(greedy_R1_, 1.0F, probabilities_RV.gather(1, best_R1)));
    }
    return probabilities_RV;
}

at::Tensor SamplingRules::choose(const at::Tensor& logits_RV, const at::Tensor& uniforms_R) const {
    return all_greedy_ ? logits_RV.argmax(1) : draw(probabilities(logits_RV), uniforms_R);
}

at::Tensor probabilities(const at::Tensor& logits_RV, std::span<const Sampling> rules_R) {
    return SamplingRules(rules_R, logits_RV.device()).probabilities(logits_RV);
}

at::Tensor draw(const at::Tensor& probabilities_RV, const at::Tensor& uniforms_R) {
    const at::Tensor possible_RV = probabilities_RV > 0;
    // Sums of a parallel scan need not rise: those of impossible tokens count for nothing.
    const at::Tensor sums_RV =
        probabilities_RV.cumsum(1, at::kDouble).masked_fill_(possible_RV.logical_not(), -1.0);
    const at::Tensor wanted_R1 =
        uniforms_R.to(at::kDouble).unsqueeze(1) * sums_RV.amax(1, /*keepdim=*/true);
    // The first of several largest values (documented for argmax).
    return (sums_RV > wanted_R1).to(at::kByte).argmax(1);
}

at::Tensor draw(const at::Tensor& probabilities_RV, std::span<const float> uniforms_R) {
    return draw(probabilities_RV, tensor::upload(uniforms_R, probabilities_RV.device()));
}

float sampling_uniform(std::uint64_t seed, std::uint64_t sequence, std::int64_t position) {
    RandomStream stream(seed, Purpose::Sampling, narrow<std::uint32_t>(position), sequence);
    // 24 bits, which fp32 holds exactly: 1 is never reached.
    return static_cast<float>(stream.next_u32() >> 8U) * 0x1p-24F;
}

}  // namespace dflash::target
