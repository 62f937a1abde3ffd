// SPDX-License-Identifier: Apache-2.0
// The order of streams in collectives, without kernels: the work is done by host functions that run
// in their stream's order, some time after they were queued.
#include <dflash/comm/in_process_group.hpp>
#include <dflash/gpu/check.hpp>
#include <dflash/gpu/device.hpp>
#include <dflash/gpu/worker.hpp>

#include <algorithm>
#include <chrono>
#include <doctest/doctest.h>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

namespace dflash::comm {
namespace {

using Values = std::vector<float>;

/// Runs `task` when the stream gets there.
void enqueue(gpu::StreamView stream, std::function<void()> task) {
    auto owned = std::make_unique<std::function<void()>>(std::move(task));
    gpu::check(cudaLaunchHostFunc(
        stream.handle(),
        [](void* data) {
            const std::unique_ptr<std::function<void()>> run(
                static_cast<std::function<void()>*>(data));
            (*run)();
        },
        owned.get()));
    static_cast<void>(owned.release());
}

class StreamBuffer final : public Buffer {
  public:
    StreamBuffer(std::shared_ptr<Values> values, gpu::StreamView stream, int delay_us)
        : values_(std::move(values)), stream_(stream), delay_us_(delay_us) {}

    std::size_t size() const override { return values_->size(); }

    float* data() const override { return values_->data(); }

    void sum_of(std::span<const Buffer* const> ranks,
                std::size_t offset,
                std::size_t count) override {
        std::vector<std::shared_ptr<Values>> sources;
        for (const Buffer* buffer : ranks) {
            sources.push_back(static_cast<const StreamBuffer*>(buffer)->values_);
        }
        later([=, own = values_] {
            for (std::size_t i = offset; i < offset + count; ++i) {
                float sum = (*sources[0])[i];
                for (std::size_t r = 1; r < sources.size(); ++r) {
                    sum += (*sources[r])[i];
                }
                (*own)[i] = sum;
            }
        });
    }

    void copy_of(const Buffer& other, std::size_t offset, std::size_t count) override {
        later([=, own = values_, source = static_cast<const StreamBuffer&>(other).values_] {
            for (std::size_t i = offset; i < offset + count; ++i) {
                (*own)[i] = (*source)[i];
            }
        });
    }

  private:
    void later(std::function<void()> task) {
        enqueue(stream_, [task = std::move(task), delay_us = delay_us_] {
            std::this_thread::sleep_for(std::chrono::microseconds(delay_us));
            task();
        });
    }

    std::shared_ptr<Values> values_;
    gpu::StreamView stream_;
    int delay_us_;
};

TEST_SUITE("comm.in_process_group") {
    TEST_CASE("collectives order the streams of logical devices that share a GPU") {
        constexpr std::size_t kSize = 1000;
        constexpr int kRounds = 30;
        const std::vector<gpu::Device> devices = gpu::parse_devices("0,0,0");
        const int num_ranks = static_cast<int>(devices.size());
        FirstError first_error;
        InProcessGroup group(num_ranks, first_error);
        std::vector<std::unique_ptr<gpu::Worker>> workers;
        for (const gpu::Device& device : devices) {
            workers.push_back(std::make_unique<gpu::Worker>(device, first_error));
        }
        // [rank][round] first and last element, and whether the host was ahead of the stream
        std::vector<std::vector<float>> results(devices.size());
        std::vector<int> ahead(devices.size());
        for (int rank = 0; rank < num_ranks; ++rank) {
            const auto r = static_cast<std::size_t>(rank);
            workers[r]->post([&, rank, r] {
                gpu::Stream owner;
                const gpu::StreamView stream = owner.view();
                const auto values = std::make_shared<Values>(kSize);
                for (int round = 0; round < kRounds; ++round) {
                    const int delay_us = 100 * ((round * 7 + rank * 5) % 11);
                    StreamBuffer buffer(values, stream, delay_us);
                    enqueue(stream, [values, rank, round, delay_us] {
                        std::this_thread::sleep_for(std::chrono::microseconds(delay_us));
                        std::ranges::fill(*values, static_cast<float>(rank + round));
                    });
                    group.all_reduce(rank, buffer, stream);
                    ahead[r] += stream.done() ? 0 : 1;
                    enqueue(stream, [values, rank, r, &results] {
                        results[r].push_back(values->front());
                        results[r].push_back(values->back());
                        std::ranges::fill(*values, static_cast<float>(100 * rank));
                    });
                    group.broadcast(rank, round % num_ranks, buffer, stream);
                    enqueue(stream, [values, r, &results] {
                        results[r].push_back(values->front());
                        results[r].push_back(values->back());
                        std::ranges::fill(*values, -1.0F);
                    });
                }
                stream.synchronize();
            });
        }
        for (const auto& worker : workers) {
            worker->call([] {});
        }
        CHECK_NOTHROW(first_error.rethrow_if_failed());
        for (std::size_t r = 0; r < results.size(); ++r) {
            CAPTURE(r);
            CHECK(ahead[r] > 0);  // otherwise nothing was left to the streams
            REQUIRE(results[r].size() == 4 * kRounds);
            for (int round = 0; round < kRounds; ++round) {
                const auto sum = static_cast<float>(3 + 3 * round);
                const auto of_root = static_cast<float>(100 * (round % num_ranks));
                const std::size_t first = 4 * static_cast<std::size_t>(round);
                CHECK(results[r][first] == sum);
                CHECK(results[r][first + 1] == sum);
                CHECK(results[r][first + 2] == of_root);
                CHECK(results[r][first + 3] == of_root);
            }
        }
    }
}

}  // namespace
}  // namespace dflash::comm
