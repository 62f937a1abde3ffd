// SPDX-License-Identifier: Apache-2.0
#include "temp_folder.hpp"

#include <dflash/core/error.hpp>
#include <dflash/io/unpacked_file.hpp>

#include <cstdlib>
#include <doctest/doctest.h>
#include <fmt/format.h>

namespace dflash::io {

namespace {

void write(const std::string& path, const std::string& bytes) {
    std::ofstream(path, std::ios::binary) << bytes;
}

}  // namespace

TEST_SUITE("io.unpacked_file") {
    TEST_CASE("unpacked file: large packed files go to the disk, and leave nothing there") {
        const test::TempFolder folder;
        const std::string scratch = folder / "scratch";
        std::string text;
        while (text.size() <= UnpackedFile::kMostInMemory + 1'000'000) {
            text += fmt::format("line {} of a file that is larger than fits\n", text.size());
        }
        for (const char* packer : {"gzip -1 -q", "zstd -1 -q --rm"}) {
            CAPTURE(packer);
            const std::string path = folder / "large";
            write(path, text);
            REQUIRE(std::system(fmt::format("{} '{}'", packer, path).c_str()) == 0);
            const std::string packed = path + (packer[0] == 'g' ? ".gz" : ".zst");
            {
                const UnpackedFile file(packed, scratch);
                CHECK(file.is_packed());
                CHECK(file.text() == text);
                CHECK(std::filesystem::is_empty(scratch));
                file.forget(0, text.size() / 2);
                CHECK(file.text() == text);
            }
            CHECK(std::filesystem::is_empty(scratch));
        }
        // The same without a place for it.
        write(folder / "no-folder", "x");
        try {
            const UnpackedFile file(folder / "large.gz", folder / "no-folder");
            FAIL_CHECK("unpacked");
        } catch (const Error& error) {
            CHECK(error.kind() == ErrorKind::Storage);
        }
    }

    TEST_CASE("unpacked file: a plain file is mapped as it is, also when it is empty") {
        const test::TempFolder folder;
        write(folder / "plain", "abc");
        write(folder / "empty", "");
        const UnpackedFile plain(folder / "plain");
        CHECK_FALSE(plain.is_packed());
        CHECK(plain.text() == "abc");
        CHECK(UnpackedFile(folder / "empty").text().empty());
        CHECK_THROWS_AS(UnpackedFile(folder / "missing"), Error);
    }
}

}  // namespace dflash::io
