// SPDX-License-Identifier: Apache-2.0
// Checks of what a call throws.
#pragma once

#include <dflash/core/error.hpp>

#include <doctest/doctest.h>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>

namespace dflash::test {

/// Runs a function that must throw an Error of a kind whose message holds all the given texts;
/// returns its message.
template <class F>
std::string expect_error(ErrorKind kind, std::initializer_list<std::string_view> parts, F&& call) {
    try {
        std::forward<F>(call)();
    } catch (const Error& error) {
        const std::string message = error.what();
        CAPTURE(message);
        CHECK(to_string(error.kind()) == to_string(kind));
        for (const std::string_view part : parts) {
            CAPTURE(part);
            CHECK(message.find(part) != std::string::npos);
        }
        return message;
    }
    FAIL_CHECK("nothing was thrown");
    return {};
}

}  // namespace dflash::test
