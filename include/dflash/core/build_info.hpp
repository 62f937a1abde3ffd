// SPDX-License-Identifier: Apache-2.0
// What this program was built from and with.
#pragma once

#include <string>

namespace dflash {

struct BuildInfo {
    std::string commit;    ///< "3982e0d12345", "3982e0d12345+changes", or "unknown" without git
    std::string compiler;  ///< "GNU 12.2.0"
    std::string build_type;
};

BuildInfo build_info();

}  // namespace dflash
