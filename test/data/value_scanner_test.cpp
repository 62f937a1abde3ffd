// SPDX-License-Identifier: Apache-2.0
#include "value_scanner.hpp"

#include <doctest/doctest.h>
#include <string>

namespace dflash::data {

TEST_SUITE("data.value_scanner") {
    TEST_CASE("value scanner: finds the end of what the parser reads, and of nothing else") {
        const std::string value =
            R"({"a": [1, -2.5e+3, "x\"]}", {"b": null}], "c": {}, "d": [], "e": NaN})";
        const ValueEnd end = find_value_end("  " + value + ", 1", 0);
        CHECK(end.kind == ValueEnd::Kind::Whole);
        CHECK(end.end == 2 + value.size());
        for (std::size_t size = 0; size < value.size(); ++size) {
            CAPTURE(size);
            CHECK(find_value_end(value.substr(0, size), 0).kind == ValueEnd::Kind::Cut);
        }
        for (const char* wrong :
             {"}", "{]", "[}", "{\"a\" \"b\"}", "[1 2]", "{\"a\": \"x\ny\"}", "[,]", "[&]", ","}) {
            CAPTURE(wrong);
            CHECK(find_value_end(wrong, 0).kind == ValueEnd::Kind::Wrong);
        }
    }
}

}  // namespace dflash::data
