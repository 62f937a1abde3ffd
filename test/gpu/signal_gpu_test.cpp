// SPDX-License-Identifier: Apache-2.0
#include <dflash/core/error.hpp>
#include <dflash/core/scope.hpp>
#include <dflash/gpu/check.hpp>
#include <dflash/gpu/device.hpp>
#include <dflash/gpu/signal.hpp>
#include <dflash/gpu/worker.hpp>

#include <array>
#include <cstdint>
#include <doctest/doctest.h>
#include <pthread.h>
#include <string>
#include <vector>

namespace dflash::gpu {
namespace {

/// Page-locked host memory: copies to and from it do not block the host.
class PageLocked : NonCopyable {
  public:
    explicit PageLocked(std::size_t count) : count_(count) {
        check(cudaMallocHost(&data_, count * sizeof(std::uint32_t)));
    }

    ~PageLocked() { report(cudaFreeHost(data_)); }

    std::uint32_t* data() { return static_cast<std::uint32_t*>(data_); }

    std::size_t bytes() const { return count_ * sizeof(std::uint32_t); }

  private:
    void* data_ = nullptr;
    std::size_t count_;
};

TEST_SUITE("gpu.signal") {
    TEST_CASE("worker: its device is current before on_start, and it is named after it") {
        for (const Device& device : parse_devices("all")) {
            FirstError first_error;
            int current = -1;
            Worker worker(
                device, first_error, {.on_start = [&] { check(cudaGetDevice(&current)); }});
            const std::string name = worker.call([] {
                std::array<char, 16> text{};
                pthread_getname_np(pthread_self(), text.data(), text.size());
                return std::string(text.data());
            });
            CHECK(current == device.ordinal);
            CHECK(name == "dflash-cuda" + std::to_string(device.ordinal));
        }
    }

    TEST_CASE("describe: names the GPU, its memory and its place on the bus") {
        const Device device = parse_devices("0").front();
        const std::string text = describe(device);
        CAPTURE(text);
        CHECK(text.find("GiB") != std::string::npos);
        CHECK(text.find("PCI ") != std::string::npos);
        const DeviceMemory memory = memory_of(device);
        CHECK(memory.free_bytes > 0);
        CHECK(memory.total_bytes >= memory.free_bytes);
    }

    TEST_CASE("signal: the consumer's stream sees what the producer's stream wrote") {
        // The producer's chain of fills takes milliseconds, the host gets ahead of it, and without
        // the signal the consumer's copy on the other stream would see an earlier fill.
        constexpr std::size_t kCount = std::size_t{1} << 24;
        constexpr int kFills = 64;
        const std::vector<Device> devices = parse_devices("0,0");
        FirstError first_error;
        Worker producer(devices[0], first_error);
        Worker consumer(devices[1], first_error);
        Stream producing = producer.call([] { return Stream(); });
        Stream consuming = consumer.call([] { return Stream(); });
        PageLocked host(kCount);
        Signal written;
        Signal read;
        void* buffer = producer.call([&] {
            void* data = nullptr;
            check(cudaMalloc(&data, host.bytes()));
            return data;
        });
        int ahead = 0;
        int wrong = 0;
        for (int round = 0; round < 20; ++round) {
            const int last = 10 + round;
            producer.call([&] {
                read.wait(producing.view());
                for (int i = 0; i < kFills; ++i) {
                    check(cudaMemsetAsync(buffer, 255, host.bytes(), producing.view().handle()));
                }
                check(cudaMemsetAsync(buffer, last, host.bytes(), producing.view().handle()));
                written.record(producing.view());
                ahead += written.reached() ? 0 : 1;
            });
            consumer.call([&] {
                written.wait(consuming.view());
                check(cudaMemcpyAsync(host.data(),
                                      buffer,
                                      host.bytes(),
                                      cudaMemcpyDeviceToHost,
                                      consuming.view().handle()));
                read.record(consuming.view());
                read.synchronize();
                CHECK(read.reached());
                const std::uint32_t expected = 0x01010101U * static_cast<std::uint32_t>(last);
                for (std::size_t i = 0; i < kCount; i += 4097) {
                    wrong += host.data()[i] == expected ? 0 : 1;
                }
            });
        }
        CHECK(wrong == 0);
        CHECK(ahead > 0);  // otherwise this has not tested anything
        producer.call([&] {
            producing.view().synchronize();
            CHECK(producing.view().done());
            check(cudaFree(buffer));
        });
        CHECK_NOTHROW(first_error.rethrow_if_failed());
    }

    TEST_CASE("check: a failing call names the device and leaves no error behind") {
        FirstError first_error;
        Worker worker(parse_devices("0").front(), first_error);
        std::string cause;
        const cudaError_t left = worker.call([&] {
            void* data = nullptr;
            try {
                check(cudaMalloc(&data, std::size_t{1} << 60));
            } catch (const Error& error) {
                cause = error.parts().cause;
            }
            return cudaPeekAtLastError();
        });
        CHECK(cause.find("cudaErrorMemoryAllocation") == 0);
        CHECK(cause.find("on GPU 0") != std::string::npos);
        CHECK(left == cudaSuccess);
    }
}

}  // namespace
}  // namespace dflash::gpu
