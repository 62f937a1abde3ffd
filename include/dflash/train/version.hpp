// SPDX-License-Identifier: Apache-2.0
// Version of the program.
#pragma once

#include <string_view>

namespace dflash::train {

inline constexpr std::string_view kVersion = "0.1.0";

}  // namespace dflash::train
