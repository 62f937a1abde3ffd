// SPDX-License-Identifier: Apache-2.0
// The largest piece of memory that operator new is asked for: this program replaces it.
#pragma once

#include <dflash/core/scope.hpp>

#include <cstddef>

namespace dflash::kernels {

/// Watches from its making on, in all threads; one at a time.
class LargestAllocation : NonCopyable {
  public:
    LargestAllocation();

    std::size_t bytes() const;
};

}  // namespace dflash::kernels
