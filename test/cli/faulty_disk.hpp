// SPDX-License-Identifier: Apache-2.0
// A disk with rules of failure below the programs that a test starts.
#pragma once

#include "../faults/fault_rules.hpp"

#include <cstdlib>
#include <string>

namespace dflash::cli {

/// Programs started while it lives have a faulty disk, without faults at first.
class FaultyDisk {
  public:
    FaultyDisk() { ::setenv("LD_PRELOAD", DFLASH_FAULTY_DISK, 1); }

    ~FaultyDisk() { ::unsetenv("LD_PRELOAD"); }

    FaultyDisk(const FaultyDisk&) = delete;
    FaultyDisk& operator=(const FaultyDisk&) = delete;

    void set(const std::string& rules) const { rules_.set(rules); }

    std::int64_t count() const { return rules_.count(); }

  private:
    test::FaultRules rules_;
};

}  // namespace dflash::cli
