// SPDX-License-Identifier: Apache-2.0
// Arrays of any type on the GPU, between poison.
#pragma once

#include "device_rows.hpp"

#include <dflash/gpu/check.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <cuda_runtime_api.h>
#include <doctest/doctest.h>
#include <vector>

namespace dflash::kernels::test {

template <class T>
class DeviceArray : NonCopyable {
  public:
    explicit DeviceArray(const std::vector<T>& values) : count_(values.size()) {
        void* data = nullptr;
        gpu::check(cudaMalloc(&data, bytes()));
        data_ = static_cast<unsigned char*>(data);
        set(values);
    }

    ~DeviceArray() { cudaFree(data_); }

    /// Of `count` elements with all bits set.
    static std::vector<T> poison(std::size_t count) {
        std::vector<T> values(count);
        std::memset(values.data(), kPoison, count * sizeof(T));
        return values;
    }

    T* get() const { return reinterpret_cast<T*>(data_ + kGuard); }

    void set(const std::vector<T>& values) {
        std::vector<unsigned char> all(bytes(), kPoison);
        std::memcpy(all.data() + kGuard, values.data(), count_ * sizeof(T));
        gpu::check(cudaMemcpy(data_, all.data(), all.size(), cudaMemcpyHostToDevice));
        gpu::check(cudaDeviceSynchronize());
    }

    /// Waits for the kernels' stream. Fails the running test if anything but elements was written.
    std::vector<T> fetch() const {
        row_kernels().stream().synchronize();
        std::vector<unsigned char> all(bytes());
        gpu::check(cudaMemcpy(all.data(), data_, all.size(), cudaMemcpyDeviceToHost));
        std::vector<T> values(count_);
        std::memcpy(values.data(), all.data() + kGuard, count_ * sizeof(T));
        std::fill_n(all.begin() + kGuard, count_ * sizeof(T), kPoison);
        const bool untouched =
            std::all_of(all.begin(), all.end(), [](unsigned char byte) { return byte == kPoison; });
        CHECK(untouched);
        return values;
    }

  private:
    static constexpr std::size_t kGuard = 1024;
    static constexpr unsigned char kPoison = 0xff;

    std::size_t bytes() const { return 2 * kGuard + count_ * sizeof(T); }

    std::size_t count_;
    unsigned char* data_ = nullptr;
};

}  // namespace dflash::kernels::test
