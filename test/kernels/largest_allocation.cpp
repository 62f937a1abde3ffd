// SPDX-License-Identifier: Apache-2.0
#include "largest_allocation.hpp"

#include <atomic>
#include <cstdlib>
#include <new>

namespace {

std::atomic<std::size_t> largest = 0;

}  // namespace

// Both forms that end in the deletes below: mixed with another library's they would not match.
void* operator new(std::size_t size, const std::nothrow_t& /*tag*/) noexcept {
    std::size_t former = largest.load();
    while (size > former && !largest.compare_exchange_weak(former, size)) {
    }
    return std::malloc(size == 0 ? 1 : size);
}

void* operator new(std::size_t size) {
    if (void* memory = ::operator new(size, std::nothrow)) {
        return memory;
    }
    throw std::bad_alloc();
}

void operator delete(void* memory) noexcept {
    std::free(memory);
}

void operator delete(void* memory, std::size_t /*size*/) noexcept {
    std::free(memory);
}

namespace dflash::kernels {

LargestAllocation::LargestAllocation() {
    largest = 0;
}

std::size_t LargestAllocation::bytes() const {
    return largest;
}

}  // namespace dflash::kernels
