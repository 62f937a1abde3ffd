// SPDX-License-Identifier: Apache-2.0
#include "attention_reference.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

namespace dflash::kernels::test {
namespace {

struct Exact {
    using Real = double;

    static Real round(Real x) { return x; }
};

struct NaiveBf16 {
    using Real = float;

    static Real round(Real x) { return from_bf16(to_bf16(x)); }
};

template <typename Real>
std::vector<Real> values_of(const std::vector<Bf16>& x) {
    std::vector<Real> result(x.size());
    std::transform(x.begin(), x.end(), result.begin(), [](Bf16 value) {
        return static_cast<Real>(from_bf16(value));
    });
    return result;
}

template <typename Real>
Real dot(const Real* a, const Real* b, std::size_t n) {
    Real sums[8] = {};
    for (std::size_t i = 0; i < n; i += 8) {
        for (std::size_t j = 0; j < 8; ++j) {
            sums[j] += a[i + j] * b[i + j];
        }
    }
    Real sum = 0;
    for (const Real part : sums) {
        sum += part;
    }
    return sum;
}

template <typename Real>
void add_scaled(Real* sum, Real factor, const Real* x, std::size_t n) {
    for (std::size_t i = 0; i < n; ++i) {
        sum[i] += factor * x[i];
    }
}

/// A key that a row sees: where its values are and where its gradients go.
template <typename Real>
struct SeenKey {
    const Real* k;
    const Real* v;
    Real* dk;
    Real* dv;
};

template <typename Arithmetic>
AttentionResults attention(const AttentionCase& c, const AttentionInputs& in) {
    using Real = typename Arithmetic::Real;
    const auto round = [](Real x) { return Arithmetic::round(x); };
    const std::size_t head_dim = static_cast<std::size_t>(c.shape.head_dim);
    const std::size_t key_heads = static_cast<std::size_t>(c.num_key_heads);
    const std::size_t query_heads = static_cast<std::size_t>(c.num_query_heads());
    const std::size_t group = static_cast<std::size_t>(c.shape.group);
    const std::int64_t block_size = c.shape.block_size;
    const auto q = values_of<Real>(in.q);
    const auto k_context = values_of<Real>(in.k_context);
    const auto v_context = values_of<Real>(in.v_context);
    const auto k_block = values_of<Real>(in.k_block);
    const auto v_block = values_of<Real>(in.v_block);
    const auto d_o = values_of<Real>(in.d_o);
    std::vector<Real> o(q.size());
    std::vector<Real> lse(q.size() / head_dim);
    std::vector<Real> dq(q.size());
    std::vector<Real> dk_context(k_context.size());
    std::vector<Real> dv_context(k_context.size());
    std::vector<Real> dk_block(k_block.size());
    std::vector<Real> dv_block(k_block.size());
    const Real scale = static_cast<Real>(1.0 / std::sqrt(static_cast<double>(head_dim)));

    std::vector<SeenKey<Real>> keys;
    std::vector<Real> p;
    std::vector<Real> dp;
    for (std::int64_t token = 0; token < c.block_tokens(); ++token) {
        const std::int64_t block = token / block_size;
        const std::int64_t slot = token % block_size;
        const std::int64_t anchor = c.anchors[static_cast<std::size_t>(block)];
        const std::int64_t begin = c.context_begin[static_cast<std::size_t>(block)];
        for (std::size_t head = 0; head < query_heads; ++head) {
            const std::size_t key_head = head / group;
            keys.clear();
            for (std::int64_t t = begin; t < anchor; ++t) {
                if (c.window == 0 || anchor + slot - t < c.window) {
                    const std::size_t at =
                        (static_cast<std::size_t>(t) * key_heads + key_head) * head_dim;
                    keys.push_back(
                        {&k_context[at], &v_context[at], &dk_context[at], &dv_context[at]});
                }
            }
            for (std::int64_t other = 0; other < block_size; ++other) {
                if ((!c.shape.causal || other <= slot) &&
                    (c.window == 0 || std::abs(other - slot) < c.window)) {
                    const std::size_t at =
                        (static_cast<std::size_t>(block * block_size + other) * key_heads +
                         key_head) *
                        head_dim;
                    keys.push_back({&k_block[at], &v_block[at], &dk_block[at], &dv_block[at]});
                }
            }
            const std::size_t row = static_cast<std::size_t>(token) * query_heads + head;
            p.resize(keys.size());
            dp.resize(keys.size());
            Real maximum = -std::numeric_limits<Real>::infinity();
            for (std::size_t i = 0; i < keys.size(); ++i) {
                p[i] = round(round(dot(&q[row * head_dim], keys[i].k, head_dim)) * scale);
                maximum = std::max(maximum, p[i]);
            }
            Real total = 0;
            for (Real& value : p) {
                value = std::exp(value - maximum);
                total += value;
            }
            lse[row] = maximum + std::log(total);
            Real delta = 0;
            for (std::size_t i = 0; i < keys.size(); ++i) {
                p[i] = round(p[i] / total);
                dp[i] = round(dot(&d_o[row * head_dim], keys[i].v, head_dim));
                add_scaled(&o[row * head_dim], p[i], keys[i].v, head_dim);
                delta += p[i] * dp[i];
            }
            for (std::size_t i = 0; i < keys.size(); ++i) {
                const Real ds = round(round(p[i] * (dp[i] - delta)) * scale);
                add_scaled(&dq[row * head_dim], ds, keys[i].k, head_dim);
                add_scaled(keys[i].dk, ds, &q[row * head_dim], head_dim);
                add_scaled(keys[i].dv, p[i], &d_o[row * head_dim], head_dim);
            }
        }
    }
    const auto rounded = [&](const std::vector<Real>& x) {
        std::vector<double> result(x.size());
        std::transform(x.begin(), x.end(), result.begin(), round);
        return result;
    };
    return {.o = rounded(o),
            .lse = std::vector<double>(lse.begin(), lse.end()),
            .dq = rounded(dq),
            .dk_context = rounded(dk_context),
            .dv_context = rounded(dv_context),
            .dk_block = rounded(dk_block),
            .dv_block = rounded(dv_block)};
}

}  // namespace

AttentionResults exact_attention(const AttentionCase& c, const AttentionInputs& in) {
    return attention<Exact>(c, in);
}

AttentionResults naive_bf16_attention(const AttentionCase& c, const AttentionInputs& in) {
    return attention<NaiveBf16>(c, in);
}

double relative_error(const std::vector<double>& x, const std::vector<double>& reference) {
    double difference = 0;
    double norm = 0;
    for (std::size_t i = 0; i < reference.size(); ++i) {
        difference += (x[i] - reference[i]) * (x[i] - reference[i]);
        norm += reference[i] * reference[i];
    }
    if (!std::isfinite(difference)) {
        return std::numeric_limits<double>::infinity();
    }
    if (norm == 0) {
        return difference == 0 ? 0 : std::numeric_limits<double>::infinity();
    }
    return std::sqrt(difference / norm);
}

}  // namespace dflash::kernels::test
