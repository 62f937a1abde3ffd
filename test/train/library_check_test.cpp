// SPDX-License-Identifier: Apache-2.0
#include <dflash/core/error.hpp>
#include <dflash/train/library_check.hpp>

#include <algorithm>
#include <doctest/doctest.h>

namespace dflash::train {
namespace {

Library library(VersionRule rule, const char* built, const char* loaded) {
    return {"libx", rule, built, loaded, "/opt/lib/libx.so"};
}

}  // namespace

TEST_SUITE("train.library_check") {
    TEST_CASE("a library fits by the rule of its interface") {
        struct Case {
            VersionRule rule;
            const char* built;
            const char* loaded;
            bool fits;
        };
        using enum VersionRule;
        for (const Case& c : std::initializer_list<Case>{
                 {Same, "2.28.9", "2.28.9", true},
                 {Same, "2.28.9", "2.28.10", false},
                 {Same, "2.28.9", "2.29.9", false},
                 {SameMinor, "2.11.0", "2.11.0+cu130", true},
                 {SameMinor, "2.11.0", "2.11.1", true},
                 {SameMinor, "2.11.0", "2.12.0", false},
                 {SameMinor, "2.11.0", "2.1.0", false},
                 {SameMajorNotOlder, "13.0", "13.0", true},
                 {SameMajorNotOlder, "13.0", "13.2", true},
                 {SameMajorNotOlder, "13.2", "13.1", false},
                 {SameMajorNotOlder, "13.0", "12.8", false},
                 {SameMajorNotOlder, "13.0", "14.0", false},
                 {SameMajorNotOlder, "13.1.0", "13.1.3", true},
                 {SameMajorNotOlder, "13.1.3", "13.1.0", false},
                 {SameMajorNotOlder, "13.9.0", "13.10.0", true},
                 {Same, "2.28.9", "", true},  // not loaded
                 {Same, "", "2.28.9", true},  // built without its header
             }) {
            CAPTURE(c.built);
            CAPTURE(c.loaded);
            CHECK(fits(library(c.rule, c.built, c.loaded)) == c.fits);
        }
    }

    TEST_CASE("what does not fit is exit 4 with both versions, the file and what to do") {
        CHECK_NOTHROW(check_libraries({library(VersionRule::Same, "1.2.3", "1.2.3")}));
        try {
            check_libraries(
                {library(VersionRule::Same, "1.2.3", "1.2.3"),
                 {"cuBLASLt",
                  VersionRule::SameMajorNotOlder,
                  "13.1.0",
                  "12.8.4",
                  "/opt/old/libcublasLt.so.12"},
                 {"LibTorch", VersionRule::SameMinor, "2.11.0", "2.9.1", "/opt/torch"}});
            FAIL("expected an error");
        } catch (const Error& error) {
            CHECK(exit_code(error.kind()) == 4);
            const std::string text = error.what();
            for (const char* part : {"cuBLASLt: got 12.8.4, expected",
                                     "13.1.0",
                                     "LibTorch: got 2.9.1, expected",
                                     "2.11.0",
                                     "/opt/old/libcublasLt.so.12",
                                     "/opt/torch",
                                     "LD_LIBRARY_PATH",
                                     "cu128",
                                     "DFLASH_VENV"}) {
                CAPTURE(text);
                CAPTURE(part);
                CHECK(text.find(part) != std::string::npos);
            }
            CHECK(text.find("libx") == std::string::npos);
        }
    }

    TEST_CASE("the libraries of this process are all found, with their files, and fit") {
        const std::vector<Library> libraries = loaded_libraries(/*with_gpu=*/true);
        CHECK(libraries.size() == 5);
        for (const Library& found : libraries) {
            CAPTURE(found.name);
            CAPTURE(found.built);
            CAPTURE(found.loaded);
            CHECK_FALSE(found.built.empty());
            CHECK_FALSE(found.loaded.empty());
            CHECK(found.file.find(".so") != std::string::npos);
        }
        CHECK_NOTHROW(check_libraries(libraries));
        const io::Json json = to_json(libraries);
        REQUIRE(json.find("LibTorch") != nullptr);
        CHECK(json.find("LibTorch")->require_string("loaded", "").starts_with("2."));
        CHECK(json.find("NVIDIA driver") != nullptr);
    }
}

}  // namespace dflash::train
