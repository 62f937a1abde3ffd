// SPDX-License-Identifier: Apache-2.0
// Words that the text of a data report is made of.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace dflash::data {

/// "1 row", "1,234 rows"
std::string counted(std::int64_t count, std::string_view noun);

/// 0 of 0 is 0.
double percent(double part, double whole);
double percent(std::int64_t part, std::int64_t whole);

}  // namespace dflash::data
