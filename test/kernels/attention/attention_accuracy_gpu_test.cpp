// SPDX-License-Identifier: Apache-2.0
// The kernels against an fp64 reference, output by output. The allowed error is twice that of a
// computation with bf16 tensors throughout, and 1e-5 more.
#include "device_attention.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <doctest/doctest.h>
#include <fmt/format.h>
#include <string>
#include <thread>
#include <vector>

namespace dflash::kernels::test {
namespace {

struct Reference {
    AttentionInputs in;
    AttentionResults exact;
    AttentionResults naive;
};

/// References of many cases, on all processors.
std::vector<Reference> references_of(const std::vector<AttentionCase>& cases) {
    std::vector<Reference> result(cases.size());
    std::atomic<std::size_t> next = 0;
    std::vector<std::jthread> threads;
    for (unsigned i = 0; i < std::max(1u, std::thread::hardware_concurrency()); ++i) {
        threads.emplace_back([&] {
            for (std::size_t at = next++; at < cases.size(); at = next++) {
                result[at].in = make_inputs(cases[at]);
                result[at].exact = exact_attention(cases[at], result[at].in);
                result[at].naive = naive_bf16_attention(cases[at], result[at].in);
            }
        });
    }
    threads.clear();
    return result;
}

/// The largest share of the allowed error that was seen, by output.
class Worst {
  public:
    void see(std::size_t output, double error, double naive, const std::string& where) {
        const double allowed = 2 * naive + 1e-5;
        if (error / allowed > entries_[output].error / entries_[output].allowed) {
            entries_[output] = {error, allowed, where};
        }
    }

    void print(const char* title) const {
        fmt::print("{}\n", title);
        for (std::size_t i = 0; i < entries_.size(); ++i) {
            const Entry& entry = entries_[i];
            fmt::print("  {:7} error {:.2e} of {:.2e} allowed ({:3.0f} %)  {}\n",
                       AttentionResults::kNames[i],
                       entry.error,
                       entry.allowed,
                       100 * entry.error / entry.allowed,
                       entry.where);
        }
        std::fflush(stdout);
    }

  private:
    struct Entry {
        double error = 0;
        double allowed = 1;
        std::string where;
    };

    std::array<Entry, 7> entries_;
};

void check_cases(const std::vector<AttentionCase>& cases,
                 const char* title,
                 std::optional<Architecture> tiles_of = std::nullopt) {
    std::vector<AttentionShape> shapes;
    shapes.reserve(cases.size());
    for (const AttentionCase& c : cases) {
        shapes.push_back(c.shape);
    }
    kernel_shelf().prepare(shapes, tiles_of);
    Worst worst;
    constexpr std::size_t kBatch = 128;
    for (std::size_t begin = 0; begin < cases.size(); begin += kBatch) {
        const std::size_t end = std::min(cases.size(), begin + kBatch);
        const std::vector<AttentionCase> batch(cases.begin() + static_cast<std::ptrdiff_t>(begin),
                                               cases.begin() + static_cast<std::ptrdiff_t>(end));
        const std::vector<Reference> references = references_of(batch);
        for (std::size_t i = 0; i < batch.size(); ++i) {
            const std::string where = batch[i].describe();
            CAPTURE(where);
            const Layout layout = i % 2 == 0 ? Layout::Gaps : Layout::Dense;
            const AttentionResults got =
                run_attention(batch[i], references[i].in, layout, tiles_of).values();
            for (std::size_t output = 0; output < AttentionResults::kNames.size(); ++output) {
                CAPTURE(AttentionResults::kNames[output]);
                const std::vector<double>& exact = *references[i].exact.all()[output];
                const double error = relative_error(*got.all()[output], exact);
                const double naive = relative_error(*references[i].naive.all()[output], exact);
                CHECK(error <= 2 * naive + 1e-5);
                worst.see(output, error, naive, where);
            }
        }
    }
    worst.print(title);
}

/// The three kinds of layers, and a window without a causal block.
constexpr struct {
    bool causal;
    std::int64_t window;
} kMasks[] = {{false, 0}, {true, 20}, {false, 0}, {false, 50}, {true, 0}, {true, 5}};

AttentionShape shape_of(int head_dim, int group, int block_size, std::size_t mask) {
    return {.head_dim = head_dim,
            .group = group,
            .block_size = block_size,
            .causal = kMasks[mask].causal,
            .windowed = kMasks[mask].window > 0};
}

std::vector<std::int32_t> documents_of(std::int64_t num_tokens, std::size_t kind) {
    const auto at = [&](std::int64_t numerator, std::int64_t denominator) {
        return static_cast<std::int32_t>(num_tokens * numerator / denominator);
    };
    if (kind % 3 == 0 || num_tokens < 8) {
        return {0};
    }
    if (kind % 3 == 1) {
        return {at(1, 7), at(1, 2)};  // tokens before the first document, too
    }
    return {0, 1, at(1, 3), at(1, 3) + 1, at(3, 4)};  // documents of one token among them
}

}  // namespace

TEST_SUITE("kernels.attention.accuracy") {
    TEST_CASE("a few small rows of every kind are right") {
        // Small enough for compute-sanitizer.
        std::vector<AttentionCase> cases;
        std::uint64_t seed = 1;
        for (const auto& [head_dim, group, block_size, mask] :
             {std::tuple{128, 4, 16, std::size_t{0}},
              std::tuple{128, 4, 16, std::size_t{1}},
              std::tuple{64, 3, 10, std::size_t{3}},
              std::tuple{256, 6, 16, std::size_t{0}},
              std::tuple{128, 8, 32, std::size_t{4}},
              std::tuple{64, 1, 8, std::size_t{5}}}) {
            for (const std::int64_t num_tokens : {65, 150}) {
                cases.push_back(make_case(shape_of(head_dim, group, block_size, mask),
                                          2,
                                          num_tokens,
                                          5,
                                          documents_of(num_tokens, seed),
                                          kMasks[mask].window,
                                          seed));
                ++seed;
            }
        }
        check_cases(cases, "small rows");
    }

    TEST_CASE("odd shapes are right") {
        std::vector<AttentionCase> cases;
        std::uint64_t seed = 100;
        std::size_t mask = 0;
        for (const int head_dim : {64, 128, 256}) {
            for (const int group : {1, 3, 4, 6, 8}) {
                for (const int block_size : {8, 10, 16}) {
                    const AttentionShape shape = shape_of(head_dim, group, block_size, mask);
                    for (const std::int64_t num_tokens : {1, 63, 64, 65, 129, 300}) {
                        for (const std::int64_t num_blocks : {1, 2, 7, 33}) {
                            const std::int64_t heads = seed % 3 == 0 ? 1 : 2;
                            cases.push_back(make_case(shape,
                                                      heads,
                                                      num_tokens,
                                                      num_blocks,
                                                      documents_of(num_tokens, seed),
                                                      kMasks[mask].window,
                                                      seed));
                            ++seed;
                        }
                    }
                    mask = (mask + 1) % std::size(kMasks);
                }
            }
        }
        check_cases(cases, "odd shapes");
    }

    TEST_CASE("all masks and extreme blocks are right") {
        std::vector<AttentionCase> cases;
        std::uint64_t seed = 5000;
        for (const auto& [head_dim, group, block_size] : {std::tuple{128, 4, 16},
                                                          std::tuple{128, 8, 32},
                                                          std::tuple{128, 1, 2},
                                                          std::tuple{128, 7, 31},
                                                          std::tuple{64, 2, 32},
                                                          std::tuple{256, 6, 16},
                                                          std::tuple{256, 8, 32}}) {
            for (std::size_t mask = 0; mask < std::size(kMasks); ++mask) {
                if (mask == 2) {
                    continue;  // as 0
                }
                for (const std::int64_t num_tokens : {129, 300}) {
                    cases.push_back(make_case(shape_of(head_dim, group, block_size, mask),
                                              2,
                                              num_tokens,
                                              19,
                                              documents_of(num_tokens, seed),
                                              kMasks[mask].window,
                                              seed));
                    ++seed;
                }
            }
        }
        check_cases(cases, "masks and blocks");
    }

    TEST_CASE("the tiles of other GPUs are right") {
        std::vector<AttentionCase> cases;
        std::uint64_t seed = 8000;
        for (const auto& [head_dim, group, block_size, mask] :
             {std::tuple{128, 4, 16, std::size_t{0}},
              std::tuple{128, 3, 10, std::size_t{1}},
              std::tuple{128, 8, 32, std::size_t{4}},
              std::tuple{64, 1, 8, std::size_t{0}},
              std::tuple{256, 6, 16, std::size_t{1}}}) {
            for (const std::int64_t num_tokens : {65, 300}) {
                for (const std::int64_t num_blocks : {3, 21}) {
                    cases.push_back(make_case(shape_of(head_dim, group, block_size, mask),
                                              2,
                                              num_tokens,
                                              num_blocks,
                                              documents_of(num_tokens, seed),
                                              kMasks[mask].window,
                                              seed));
                    ++seed;
                }
            }
        }
        check_cases(cases, "tiles of sm_80", Architecture::parse("sm_80"));
        check_cases(cases, "tiles of sm_120", Architecture::parse("sm_120a"));
    }

    TEST_CASE("rows of thousands of tokens and anchors are right") {
        std::vector<AttentionCase> cases;
        cases.push_back(make_case(shape_of(128, 4, 16, 0), 1, 3000, 100, {0}, 0, 7001));
        cases.push_back(
            make_case(shape_of(128, 4, 16, 1), 1, 2500, 150, {0, 700, 900, 2100}, 20, 7002));
        cases.push_back(make_case(shape_of(64, 2, 2, 0), 1, 600, 3000, {0, 100, 350}, 0, 7003));
        AttentionCase window = cases[0];
        window.shape.windowed = true;
        window.shape.causal = true;
        window.window = 500;
        cases.push_back(window);
        check_cases(cases, "long rows");
    }
}

}  // namespace dflash::kernels::test
