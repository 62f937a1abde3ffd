// SPDX-License-Identifier: Apache-2.0
#include <dflash/comm/in_process_group.hpp>
#include <dflash/core/error.hpp>
#include <dflash/core/random.hpp>

#include <atomic>
#include <chrono>
#include <cmath>
#include <cstring>
#include <doctest/doctest.h>
#include <exception>
#include <functional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace dflash::comm {
namespace {

using namespace std::chrono_literals;
using Values = std::vector<float>;

/// Runs `body(rank)` on a thread per rank, as workers do: what it throws goes to FirstError.
/// Returns what each rank threw, as text.
std::vector<std::string> run_ranks(int num_ranks,
                                   FirstError& first_error,
                                   const std::function<void(int rank)>& body) {
    std::vector<std::string> thrown(static_cast<std::size_t>(num_ranks));
    std::vector<std::thread> threads;
    threads.reserve(thrown.size());
    for (int rank = 0; rank < num_ranks; ++rank) {
        threads.emplace_back([&, rank] {
            try {
                body(rank);
            } catch (const std::exception& error) {
                thrown[static_cast<std::size_t>(rank)] = error.what();
                first_error.store(std::current_exception());
            }
        });
    }
    for (std::thread& thread : threads) {
        thread.join();
    }
    return thrown;
}

/// Values of very different sizes, so that the order of additions shows in the bits.
Values values_of(int rank, std::size_t size) {
    RandomStream random(1, Purpose::Test, 0, static_cast<std::uint64_t>(rank));
    Values values(size);
    for (float& value : values) {
        value = static_cast<float>(random.normal() * std::exp(4 * random.normal()));
    }
    return values;
}

Values sum_in_order(int num_ranks, std::size_t size) {
    Values sum = values_of(0, size);
    for (int rank = 1; rank < num_ranks; ++rank) {
        const Values values = values_of(rank, size);
        for (std::size_t i = 0; i < size; ++i) {
            sum[i] += values[i];
        }
    }
    return sum;
}

bool same_bits(const Values& a, const Values& b) {
    return a.size() == b.size() &&
           (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

void random_pause(RandomStream& random) {
    if (random.below(2) == 0) {
        std::this_thread::sleep_for(std::chrono::microseconds(random.below(300)));
    }
}

/// A buffer whose work fails, or takes long.
class TroubledBuffer final : public Buffer {
  public:
    explicit TroubledBuffer(std::function<void()> trouble) : trouble_(std::move(trouble)) {}

    ~TroubledBuffer() override { alive_ = false; }

    std::size_t size() const override { return 1000; }

    float* data() const override { return nullptr; }

    void sum_of(std::span<const Buffer* const> ranks, std::size_t, std::size_t) override {
        trouble_();
        for (const Buffer* buffer : ranks) {
            all_alive_ = all_alive_ && static_cast<const TroubledBuffer*>(buffer)->alive_;
        }
    }

    void copy_of(const Buffer& other, std::size_t, std::size_t) override {
        all_alive_ = all_alive_ && static_cast<const TroubledBuffer&>(other).alive_;
    }

    bool all_alive() const { return all_alive_; }

  private:
    std::function<void()> trouble_;
    std::atomic<bool> alive_ = true;
    bool all_alive_ = true;
};

TEST_SUITE("comm.in_process_group") {
    TEST_CASE(
        "all_reduce: every rank gets the sum in rank order, bit for bit, whatever the timing") {
        for (int num_ranks = 1; num_ranks <= 5; ++num_ranks) {
            for (const std::size_t size : {std::size_t{0},
                                           std::size_t{1},
                                           std::size_t{63},
                                           std::size_t{64},
                                           std::size_t{1000},
                                           std::size_t{40001}}) {
                CAPTURE(num_ranks);
                CAPTURE(size);
                const Values expected = sum_in_order(num_ranks, size);
                FirstError first_error;
                InProcessGroup group(num_ranks, first_error);
                std::atomic<int> wrong = 0;
                run_ranks(num_ranks, first_error, [&](int rank) {
                    RandomStream random(2, Purpose::Test, 0, static_cast<std::uint64_t>(rank));
                    const Values own = values_of(rank, size);
                    for (int round = 0; round < 10; ++round) {
                        Values values = own;
                        HostBuffer buffer(values);
                        random_pause(random);
                        group.all_reduce(rank, buffer);
                        wrong += same_bits(values, expected) ? 0 : 1;
                    }
                });
                CHECK(wrong == 0);
                CHECK_NOTHROW(first_error.rethrow_if_failed());
            }
        }
    }

    TEST_CASE("all_reduce: the order of additions matters for the values of these tests") {
        constexpr std::size_t kSize = 1000;
        Values backwards = values_of(2, kSize);
        for (int rank = 1; rank >= 0; --rank) {
            const Values values = values_of(rank, kSize);
            for (std::size_t i = 0; i < kSize; ++i) {
                backwards[i] += values[i];
            }
        }
        CHECK(!same_bits(backwards, sum_in_order(3, kSize)));
    }

    TEST_CASE("all_reduce: the buffer may be overwritten as soon as the call returns") {
        constexpr int kRanks = 3;
        constexpr std::size_t kSize = 5000;
        FirstError first_error;
        InProcessGroup group(kRanks, first_error);
        std::atomic<int> wrong = 0;
        run_ranks(kRanks, first_error, [&](int rank) {
            Values values(kSize);
            HostBuffer buffer(values);
            for (int round = 0; round < 300; ++round) {
                values.assign(kSize, static_cast<float>(round + rank));
                group.all_reduce(rank, buffer);
                const auto expected = static_cast<float>(3 * round + 3);
                for (const float value : values) {
                    wrong += value == expected ? 0 : 1;
                }
            }
        });
        CHECK(wrong == 0);
    }

    TEST_CASE("broadcast: every rank gets the root's values") {
        constexpr std::size_t kSize = 777;
        for (int num_ranks = 1; num_ranks <= 4; ++num_ranks) {
            FirstError first_error;
            InProcessGroup group(num_ranks, first_error);
            std::atomic<int> wrong = 0;
            run_ranks(num_ranks, first_error, [&](int rank) {
                RandomStream random(3, Purpose::Test, 0, static_cast<std::uint64_t>(rank));
                for (int round = 0; round < 20; ++round) {
                    const int root = round % num_ranks;
                    Values values = values_of(rank, kSize);
                    HostBuffer buffer(values);
                    random_pause(random);
                    group.broadcast(rank, root, buffer);
                    wrong += same_bits(values, values_of(root, kSize)) ? 0 : 1;
                }
            });
            CHECK(wrong == 0);
        }
    }

    TEST_CASE("barrier: nobody passes before all have arrived, again and again") {
        constexpr int kRanks = 4;
        constexpr int kRounds = 200;
        FirstError first_error;
        InProcessGroup group(kRanks, first_error);
        std::vector<std::atomic<int>> arrivals(kRounds);
        std::atomic<int> early = 0;
        run_ranks(kRanks, first_error, [&](int rank) {
            RandomStream random(4, Purpose::Test, 0, static_cast<std::uint64_t>(rank));
            for (int round = 0; round < kRounds; ++round) {
                if (round % 10 == 0) {
                    random_pause(random);
                }
                std::atomic<int>& count = arrivals[static_cast<std::size_t>(round)];
                ++count;
                group.barrier(rank);
                early += count == kRanks ? 0 : 1;
            }
        });
        CHECK(early == 0);
    }

    TEST_CASE("collectives of different kinds follow each other") {
        constexpr int kRanks = 3;
        FirstError first_error;
        InProcessGroup group(kRanks, first_error);
        std::atomic<int> wrong = 0;
        run_ranks(kRanks, first_error, [&](int rank) {
            for (int round = 0; round < 100; ++round) {
                Values values(100, static_cast<float>(rank + 1));
                HostBuffer buffer(values);
                group.all_reduce(rank, buffer);  // 6
                values[0] += static_cast<float>(rank);
                group.broadcast(rank, round % kRanks, buffer);
                group.barrier(rank);
                group.all_reduce(rank, buffer);
                wrong += values[0] == static_cast<float>(3 * (6 + round % kRanks)) ? 0 : 1;
                wrong += values[99] == 18.0F ? 0 : 1;
            }
        });
        CHECK(wrong == 0);
    }

    TEST_CASE("a rank that fails before it arrives wakes the others with its error") {
        for (int num_ranks = 2; num_ranks <= 5; ++num_ranks) {
            for (const std::string call : {"all_reduce", "broadcast", "barrier"}) {
                CAPTURE(num_ranks);
                CAPTURE(call);
                FirstError first_error;
                InProcessGroup group(num_ranks, first_error);
                const auto began = std::chrono::steady_clock::now();
                const auto thrown = run_ranks(num_ranks, first_error, [&](int rank) {
                    if (rank == num_ranks / 2) {
                        std::this_thread::sleep_for(10ms);
                        throw std::runtime_error("rank failed");
                    }
                    Values values(100);
                    HostBuffer buffer(values);
                    if (call == "all_reduce") {
                        group.all_reduce(rank, buffer);
                    } else if (call == "broadcast") {
                        group.broadcast(rank, 0, buffer);
                    } else {
                        group.barrier(rank);
                    }
                });
                CHECK(std::chrono::steady_clock::now() - began < 1s);
                for (const std::string& text : thrown) {
                    CHECK(text == "rank failed");
                }
            }
        }
    }

    TEST_CASE("an error elsewhere in the run wakes all ranks") {
        FirstError first_error;
        InProcessGroup group(3, first_error);
        std::thread elsewhere([&] {
            std::this_thread::sleep_for(10ms);
            first_error.store(std::make_exception_ptr(std::runtime_error("elsewhere")));
        });
        const auto thrown = run_ranks(2, first_error, [&](int rank) { group.barrier(rank); });
        elsewhere.join();
        CHECK(thrown == std::vector<std::string>(2, "elsewhere"));
    }

    TEST_CASE("a failing sum reaches all ranks, and no rank leaves while its buffer is in use") {
        for (int round = 0; round < 20; ++round) {
            FirstError first_error;
            InProcessGroup group(3, first_error);
            std::atomic<int> dead = 0;
            const auto thrown = run_ranks(3, first_error, [&](int rank) {
                TroubledBuffer buffer([rank] {
                    if (rank == 1) {
                        throw std::runtime_error("sum failed");
                    }
                    std::this_thread::sleep_for(5ms);
                });
                try {
                    group.all_reduce(rank, buffer);
                } catch (...) {
                    dead += buffer.all_alive() ? 0 : 1;
                    throw;
                }
            });
            CHECK(thrown == std::vector<std::string>(3, "sum failed"));
            CHECK(dead == 0);
        }
    }

    TEST_CASE("buffers of different sizes and different collectives are internal errors") {
        FirstError sizes;
        InProcessGroup group(2, sizes);
        run_ranks(2, sizes, [&](int rank) {
            Values values(rank == 0 ? 10 : 11);
            HostBuffer buffer(values);
            group.all_reduce(rank, buffer);
        });
        CHECK_THROWS_WITH_AS(
            sizes.rethrow_if_failed(), doctest::Contains("different collectives"), Error);

        FirstError kinds;
        InProcessGroup mixed(2, kinds);
        run_ranks(2, kinds, [&](int rank) {
            Values values(10);
            HostBuffer buffer(values);
            if (rank == 0) {
                mixed.all_reduce(rank, buffer);
            } else {
                mixed.broadcast(rank, 0, buffer);
            }
        });
        CHECK_THROWS_AS(kinds.rethrow_if_failed(), Error);
    }

    TEST_CASE("a rank that is there twice or does not exist is an internal error") {
        FirstError first_error;
        InProcessGroup group(3, first_error);
        CHECK_THROWS_AS(group.barrier(3), Error);
        CHECK_THROWS_AS(group.barrier(-1), Error);
        run_ranks(2, first_error, [&](int) { group.barrier(0); });
        CHECK_THROWS_WITH_AS(
            first_error.rethrow_if_failed(), doctest::Contains("is there already"), Error);
        CHECK_THROWS_AS(InProcessGroup(0, first_error), Error);
    }
}

}  // namespace
}  // namespace dflash::comm
