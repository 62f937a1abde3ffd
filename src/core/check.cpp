// SPDX-License-Identifier: Apache-2.0
#include <dflash/core/check.hpp>
#include <dflash/core/error.hpp>

namespace dflash {

void fail_check(const char* expression, const std::string& message, std::source_location where) {
    throw Error(ErrorKind::Internal,
                {.what = fmt::format("check failed: {}: {}", expression, message),
                 .where = fmt::format("{}:{}", where.file_name(), where.line()),
                 .cause = {},
                 .hint = "This is a bug of dflash; please report it with the lines above"});
}

}  // namespace dflash
