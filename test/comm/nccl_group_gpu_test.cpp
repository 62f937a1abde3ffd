// SPDX-License-Identifier: Apache-2.0
// Needs two GPUs.
#include <dflash/comm/nccl_group.hpp>
#include <dflash/core/error.hpp>
#include <dflash/gpu/check.hpp>
#include <dflash/gpu/worker.hpp>

#include <chrono>
#include <doctest/doctest.h>
#include <functional>
#include <string>

namespace dflash::comm {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr std::size_t kSize = 1 << 20;

double seconds_since(Clock::time_point begin) {
    return std::chrono::duration<double>(Clock::now() - begin).count();
}

/// fp32 on the current device.
class DeviceBuffer final : public Buffer {
  public:
    explicit DeviceBuffer(std::size_t size) : size_(size) {
        gpu::check(cudaMalloc(reinterpret_cast<void**>(&data_), size * sizeof(float)));
    }

    ~DeviceBuffer() override { gpu::report(cudaFree(data_)); }

    std::size_t size() const override { return size_; }

    float* data() const override { return data_; }

    void sum_of(std::span<const Buffer* const>, std::size_t, std::size_t) override {}

    void copy_of(const Buffer&, std::size_t, std::size_t) override {}

    void fill(float value, gpu::StreamView stream) {
        const std::vector<float> values(size_, value);
        gpu::check(cudaMemcpyAsync(
            data_, values.data(), size_ * sizeof(float), cudaMemcpyHostToDevice, stream.handle()));
        stream.synchronize();
    }

    std::vector<float> values(gpu::StreamView stream) const {
        std::vector<float> values(size_);
        gpu::check(cudaMemcpyAsync(
            values.data(), data_, size_ * sizeof(float), cudaMemcpyDeviceToHost, stream.handle()));
        stream.synchronize();
        return values;
    }

  private:
    std::size_t size_;
    float* data_ = nullptr;
};

/// Two workers on two GPUs, and a group of them.
struct Two {
    explicit Two(std::chrono::milliseconds timeout)
        : group(make_process_group(devices, first_error, timeout)) {
        for (const gpu::Device& device : devices) {
            workers.push_back(std::make_unique<gpu::Worker>(device, first_error));
        }
    }

    ~Two() { workers.clear(); }

    /// Runs `body(rank)` on both at the same time; waits for both.
    void run(const std::function<void(int)>& body) {
        for (int rank = 0; rank < 2; ++rank) {
            workers[static_cast<std::size_t>(rank)]->post([&body, rank] { body(rank); });
        }
        for (const auto& worker : workers) {
            worker->call([] {});
        }
    }

    std::vector<gpu::Device> devices = gpu::parse_devices("0,1");
    FirstError first_error;
    std::unique_ptr<ProcessGroup> group;
    std::vector<std::unique_ptr<gpu::Worker>> workers;
};

bool two_gpus() {
    if (gpu::cuda_device_count() >= 2) {
        return true;
    }
    MESSAGE("skipped: needs two GPUs");
    return false;
}

TEST_SUITE("comm.nccl_group") {
    TEST_CASE("sums and broadcasts arrive in stream order, and the host does not wait") {
        if (!two_gpus()) {
            return;
        }
        Two two(60s);
        std::vector<int> wrong(2);
        two.run([&](int rank) {
            two.group->join(rank);
            gpu::Stream owner;
            const gpu::StreamView stream = owner.view();
            DeviceBuffer buffer(kSize);
            for (int round = 0; round < 50; ++round) {
                buffer.fill(static_cast<float>(rank + round), stream);
                two.group->all_reduce(rank, buffer, stream);
                const std::vector<float> sums = buffer.values(stream);
                const auto sum = static_cast<float>(2 * round + 1);
                wrong[static_cast<std::size_t>(rank)] +=
                    sums.front() == sum && sums.back() == sum ? 0 : 1;
                buffer.fill(static_cast<float>(100 + rank), stream);
                two.group->broadcast(rank, round % 2, buffer, stream);
                const std::vector<float> sent = buffer.values(stream);
                const auto of_root = static_cast<float>(100 + round % 2);
                wrong[static_cast<std::size_t>(rank)] +=
                    sent.front() == of_root && sent.back() == of_root ? 0 : 1;
            }
            two.group->barrier(rank);
        });
        CHECK(wrong == std::vector<int>{0, 0});
        CHECK_NOTHROW(two.first_error.rethrow_if_failed());
    }

    TEST_CASE("the error of one rank ends the others within seconds, with that error") {
        if (!two_gpus()) {
            return;
        }
        Two two(60s);
        two.run([&](int rank) { two.group->join(rank); });
        const Clock::time_point begin = Clock::now();
        std::string thrown;
        try {
            two.run([&](int rank) {
                gpu::Stream owner;
                DeviceBuffer buffer(kSize);
                if (rank == 1) {
                    std::this_thread::sleep_for(200ms);
                    throw Error(ErrorKind::Numeric,
                                {.what = "induced", .where = {}, .cause = {}, .hint = {}});
                }
                two.group->all_reduce(rank, buffer, owner.view());
                owner.view().synchronize();
            });
        } catch (const Error& error) {
            thrown = error.what();
        }
        two.workers.clear();
        CHECK(thrown.find("induced") != std::string::npos);
        CHECK(seconds_since(begin) < 10);
    }

    TEST_CASE("a rank that does not come is named with the collective") {
        if (!two_gpus()) {
            return;
        }
        Two two(2s);
        const Clock::time_point begin = Clock::now();
        std::string thrown;
        try {
            two.run([&](int rank) {
                two.group->join(rank);
                gpu::Stream owner;
                DeviceBuffer buffer(kSize);
                two.group->all_reduce(rank, buffer, owner.view());
                if (rank == 0) {
                    two.group->all_reduce(rank, buffer, owner.view());
                }
                owner.view().synchronize();
            });
            while (!two.first_error.failed() && seconds_since(begin) < 20) {
                std::this_thread::sleep_for(10ms);
            }
            two.first_error.rethrow_if_failed();
        } catch (const Error& error) {
            thrown = error.what();
        }
        two.workers.clear();
        CHECK(thrown.find("did not end within 2 s: all_reduce 3: rank 0 waits for rank 1") !=
              std::string::npos);
        CHECK(seconds_since(begin) < 12);
    }

    TEST_CASE("200 groups are made, used and destroyed without a hang") {
        if (!two_gpus()) {
            return;
        }
        const Clock::time_point begin = Clock::now();
        Two two(60s);
        for (int cycle = 0; cycle < 200; ++cycle) {
            CAPTURE(cycle);
            two.group = make_process_group(two.devices, two.first_error, 60s);
            two.run([&](int rank) {
                two.group->join(rank);
                gpu::Stream owner;
                DeviceBuffer buffer(1000);
                buffer.fill(1, owner.view());
                two.group->all_reduce(rank, buffer, owner.view());
                owner.view().synchronize();
            });
        }
        CHECK_NOTHROW(two.first_error.rethrow_if_failed());
        MESSAGE("200 cycles in " << seconds_since(begin) << " s");
    }
}

}  // namespace
}  // namespace dflash::comm
