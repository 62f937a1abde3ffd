// SPDX-License-Identifier: Apache-2.0
// Host memory that a device copies to by itself, while the processor does other things.
#pragma once

#include <dflash/core/scope.hpp>
#include <dflash/gpu/device.hpp>

#include <cstddef>
#include <span>
#include <string>

namespace dflash::gpu {

/// A block of host memory that stays where it is: page-locked for a GPU, plain for a CPU device.
/// Filled with zeros, so that all of it is there before it is needed. The bytes may be read and
/// written from any thread.
class HostMemory : NonCopyable {
  public:
    /// On the worker of `device`. Where the system refuses to lock that much, the memory is plain:
    /// copies then wait for the processor, and reason() says why. Throws Error{Device} if there is
    /// not that much memory.
    HostMemory(std::size_t size, const Device& device);
    ~HostMemory();

    std::span<std::byte> bytes() const { return bytes_; }

    bool is_page_locked() const { return page_locked_; }

    /// Why memory for a GPU is not page-locked, as the runtime put it; else empty.
    const std::string& reason() const { return reason_; }

  private:
    std::span<std::byte> bytes_;
    bool page_locked_ = false;
    std::string reason_;
};

}  // namespace dflash::gpu
