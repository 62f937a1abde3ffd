// SPDX-License-Identifier: Apache-2.0
#include "attention_case.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <fmt/format.h>

namespace dflash::kernels::test {
namespace {

/// SplitMix64: fast, and good enough for test data.
class Generator {
  public:
    explicit Generator(std::uint64_t seed) : state_(seed) {}

    std::uint64_t next() {
        std::uint64_t z = (state_ += 0x9e3779b97f4a7c15u);
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
        return z ^ (z >> 31);
    }

    /// Sum of four uniform numbers, of variance 1.
    float normal() {
        const std::uint64_t bits = next();
        double sum = 0;
        for (int i = 0; i < 4; ++i) {
            sum += static_cast<double>((bits >> (16 * i)) & 0xffffu) / 65536.0 - 0.5;
        }
        return static_cast<float>(sum * std::sqrt(3.0));
    }

    std::int64_t below(std::int64_t n) {
        return static_cast<std::int64_t>(next() % static_cast<std::uint64_t>(n));
    }

  private:
    std::uint64_t state_;
};

std::vector<Bf16> random_tensor(Generator& generator, std::int64_t count, float scale) {
    std::vector<Bf16> result(static_cast<std::size_t>(count));
    for (Bf16& value : result) {
        value = to_bf16(generator.normal() * scale);
    }
    return result;
}

}  // namespace

Bf16 to_bf16(float value) {
    const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
    return static_cast<Bf16>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

float from_bf16(Bf16 value) {
    return std::bit_cast<float>(static_cast<std::uint32_t>(value) << 16);
}

std::vector<bool> AttentionCase::padding() const {
    std::vector<bool> result(static_cast<std::size_t>(num_tokens), true);
    for (std::size_t n = 0; n < anchors.size(); ++n) {
        std::fill(result.begin() + context_begin[n], result.begin() + anchors[n], false);
    }
    return result;
}

std::string AttentionCase::describe() const {
    return fmt::format("D {} G {} B {}{} K {}, T {} N {}, window {}, seed {}",
                       shape.head_dim,
                       shape.group,
                       shape.block_size,
                       shape.causal ? " causal" : "",
                       num_key_heads,
                       num_tokens,
                       num_blocks(),
                       window,
                       seed);
}

AttentionInputs make_inputs(const AttentionCase& c) {
    Generator generator(c.seed * 1000003 + 17);
    const std::int64_t head_dim = c.shape.head_dim;
    const std::int64_t tokens = c.block_tokens();
    const std::int64_t context = c.num_tokens * c.num_key_heads * head_dim;
    const std::int64_t block = tokens * c.num_key_heads * head_dim;
    const std::int64_t query = tokens * c.num_query_heads() * head_dim;
    AttentionInputs in;
    in.q = random_tensor(generator, query, 2.0f);
    in.k_context = random_tensor(generator, context, 1.0f);
    in.v_context = random_tensor(generator, context, 1.0f);
    in.k_block = random_tensor(generator, block, 1.0f);
    in.v_block = random_tensor(generator, block, 1.0f);
    in.d_o = random_tensor(generator, query, 1.0f);
    const std::vector<bool> padding = c.padding();
    const std::int64_t width = c.num_key_heads * head_dim;
    for (std::int64_t t = 0; t < c.num_tokens; ++t) {
        if (padding[static_cast<std::size_t>(t)]) {
            std::fill_n(in.k_context.begin() + t * width, width, kPoison);
            std::fill_n(in.v_context.begin() + t * width, width, kPoison);
        }
    }
    return in;
}

AttentionCase make_case(const AttentionShape& shape,
                        std::int64_t num_key_heads,
                        std::int64_t num_tokens,
                        std::int64_t num_blocks,
                        const std::vector<std::int32_t>& document_begin,
                        std::int64_t window,
                        std::uint64_t seed) {
    AttentionCase c;
    c.shape = shape;
    c.num_key_heads = num_key_heads;
    c.num_tokens = num_tokens;
    c.window = window;
    c.seed = seed;
    Generator generator(seed);
    const auto end_of = [&](std::size_t document) {
        return document + 1 < document_begin.size() ? std::int64_t{document_begin[document + 1]}
                                                    : num_tokens;
    };
    std::vector<std::pair<std::int32_t, std::int32_t>> blocks;  // document begin, anchor
    for (std::int64_t n = 0; n < num_blocks; ++n) {
        const std::size_t document =
            static_cast<std::size_t>(n) % std::max<std::size_t>(1, document_begin.size());
        const std::int64_t begin = document_begin[document];
        const std::int64_t length = end_of(document) - begin;
        const std::int64_t round = n / static_cast<std::int64_t>(document_begin.size());
        std::int64_t anchor = begin + generator.below(length);
        if (round == 0 && n % 2 == 0) {
            anchor = begin + length - 1;
        } else if (round == 1) {
            anchor = begin;
        } else if (round % 5 == 3) {
            anchor = blocks[static_cast<std::size_t>(n) - document_begin.size()].second;
        }
        blocks.emplace_back(static_cast<std::int32_t>(begin), static_cast<std::int32_t>(anchor));
    }
    std::sort(blocks.begin(), blocks.end());
    for (const auto& [begin, anchor] : blocks) {
        c.context_begin.push_back(begin);
        c.anchors.push_back(anchor);
    }
    return c;
}

}  // namespace dflash::kernels::test
