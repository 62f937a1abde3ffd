// SPDX-License-Identifier: Apache-2.0
// Checks of invariants and of contracts between modules. What a user can cause is an Error with a
// kind instead.
#pragma once

#include <concepts>
#include <fmt/format.h>
#include <source_location>
#include <string>
#include <utility>

namespace dflash {

/// Throws Error{Internal} with the failed expression, the message and the source location.
[[noreturn]] void fail_check(const char* expression,
                             const std::string& message,
                             std::source_location where);

/// Converts between integer types; throws Error{Internal} if the value does not fit.
template <std::integral To, std::integral From>
constexpr To narrow(From value, std::source_location where = std::source_location::current()) {
    if (!std::in_range<To>(value)) {
        fail_check("narrow", fmt::format("{} does not fit into the target type", value), where);
    }
    return static_cast<To>(value);
}

/// a / b where b divides a; throws Error{Internal} otherwise.
template <std::integral T>
constexpr T div_exact(T a, T b, std::source_location where = std::source_location::current()) {
    if (b == 0 || a % b != 0) {
        fail_check("div_exact", fmt::format("{} is not a multiple of {}", a, b), where);
    }
    return a / b;
}

}  // namespace dflash

/// Always on. DFLASH_CHECK(condition, "format {}", args...): throws Error{Internal} if the
/// condition is false.
#define DFLASH_CHECK(condition, ...)                                                    \
    do {                                                                                \
        if (!(condition)) [[unlikely]] {                                                \
            ::dflash::fail_check(                                                       \
                #condition, fmt::format(__VA_ARGS__), std::source_location::current()); \
        }                                                                               \
    } while (false)
