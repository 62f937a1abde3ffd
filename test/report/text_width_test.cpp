// SPDX-License-Identifier: Apache-2.0
#include "text_width.hpp"

#include <doctest/doctest.h>

namespace dflash::report {

TEST_SUITE("report.text_width") {
    TEST_CASE("width counts columns, not bytes") {
        struct Case {
            const char* text;
            int width;
        };

        for (const auto& [text, width] : {
                 Case{"", 0},
                 Case{"abc", 3},
                 Case{"\xC3\xA9", 1},                  // e with acute
                 Case{"e\xCC\x81", 1},                 // e, combining acute
                 Case{"\xE4\xBD\xA0\xE5\xA5\xBD", 4},  // two Chinese characters
                 Case{"\xF0\x9F\x98\x80", 2},          // an emoji
                 Case{"\033[1mab\033[m", 2},           // colours
                 Case{"\033[31;1mab\033[0m", 2},       //
                 Case{"\xFF\xC3", 2},                  // broken bytes, one column each
                 Case{"\xED\xA0\x80", 3},              // a surrogate is broken
                 Case{"\xC0\xAF", 2},                  // overlong
             }) {
            CAPTURE(text);
            CHECK(display_width(text) == width);
        }
    }

    TEST_CASE("a cut never splits a character, and sets colours back") {
        CHECK(cut_to_width("abcdef", 3) == "abc");
        CHECK(cut_to_width("abc", 3) == "abc");
        CHECK(cut_to_width("abc", 0).empty());
        CHECK(cut_to_width("\xE4\xBD\xA0\xE5\xA5\xBD", 3) == "\xE4\xBD\xA0");
        CHECK(cut_to_width("\xE4\xBD\xA0z", 1).empty());  // nothing behind the cut, however narrow
        CHECK(cut_to_width("\033[1mabcdef\033[m", 2) == "\033[1mab\033[m");
        CHECK(cut_to_width("e\xCC\x81x", 1) == "e\xCC\x81");
    }

    TEST_CASE("foreign text cannot steer the terminal") {
        CHECK(printable("a\tb\033[2Jc\x7F") == "a?b?[2Jc?");
        CHECK(printable("\033[1mx") == "?[1mx");
        CHECK(printable("\xC2\x9B"
                        "2J") == "?2J");  // CSI as one character
        CHECK(printable("\xFFok \xE4\xBD\xA0") == "?ok \xE4\xBD\xA0");
    }
}

}  // namespace dflash::report
