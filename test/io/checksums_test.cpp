// SPDX-License-Identifier: Apache-2.0
#include "expect_error.hpp"
#include "temp_folder.hpp"

#include <dflash/io/checksums.hpp>

#include <doctest/doctest.h>
#include <filesystem>
#include <string>

namespace dflash::io {
namespace {

using test::expect_error;
using test::TempFolder;

std::span<const std::byte> bytes_of(const std::string& text) {
    return std::as_bytes(std::span(text.data(), text.size()));
}

TEST_SUITE_BEGIN("io.checksums");

TEST_CASE("hashes are those of the reference implementation") {
    // From the xxhsum program, version 0.8.1: xxhsum -H64.
    CHECK(xxh64_hex("") == "ef46db3751d8e999");
    CHECK(xxh64_hex("abc") == "44bc2cf5ad770999");
    CHECK(xxh64_hex(std::string(1000, 'x')) == "4cb9a3b69cb700e1");
}

TEST_CASE("a hash does not depend on the pieces in which bytes come") {
    std::string text;
    for (int i = 0; i < 1000; ++i) {
        text += std::to_string(i * 7919);
    }
    for (const std::size_t piece : {std::size_t{1}, std::size_t{31}, std::size_t{4096}}) {
        CAPTURE(piece);
        Xxh64 hash;
        for (std::size_t at = 0; at < text.size(); at += piece) {
            hash.add(bytes_of(text.substr(at, piece)));
        }
        CHECK(hash.hex() == xxh64_hex(text));
    }
}

TEST_CASE("a file is hashed in pieces, and every piece is told") {
    const TempFolder folder;
    const std::string text(std::size_t{9} << 20, 'y');
    test::write_text(folder / "a", text);
    for (const From from : {From::Anywhere, From::Disk}) {
        std::int64_t told = 0;
        int calls = 0;
        CHECK(xxh64_of_file(folder / "a", from, [&](std::int64_t bytes) {
                  told += bytes;
                  ++calls;
              }) == xxh64_hex(text));
        CHECK(told == std::ssize(text));
        CHECK(calls >= 3);
    }

    struct Stop {};

    CHECK_THROWS_AS(xxh64_of_file(folder / "a", From::Anywhere, [](std::int64_t) { throw Stop{}; }),
                    Stop);
    expect_error(ErrorKind::Storage, {"cannot read", folder / "b"}, [&] {
        xxh64_of_file(folder / "b", From::Disk);
    });
}

TEST_CASE("a list is read back as it was written") {
    const TempFolder folder;
    const Checksums checksums = {{"a/b c", xxh64_hex("1")}, {"d", xxh64_hex("2")}};
    test::write_text(folder / "list", to_text(checksums));
    CHECK(read_checksums(folder / "list") == checksums);
    test::write_text(folder / "empty", to_text({}));
    CHECK(read_checksums(folder / "empty").empty());
}

TEST_CASE("any changed byte and any cut of a list is noticed") {
    const TempFolder folder;
    const std::string text = to_text({{"a", xxh64_hex("1")}, {"b", xxh64_hex("2")}});
    for (std::size_t i = 0; i < text.size(); ++i) {
        CAPTURE(i);
        std::string damaged = text;
        damaged[i] = static_cast<char>(damaged[i] ^ 4);
        test::write_text(folder / "list", damaged);
        expect_error(ErrorKind::Data, {"the list of checksums is damaged", folder / "list"}, [&] {
            read_checksums(folder / "list");
        });
        test::write_text(folder / "list", text.substr(0, i));
        expect_error(ErrorKind::Data, {"the list of checksums is damaged", folder / "list"}, [&] {
            read_checksums(folder / "list");
        });
    }
    expect_error(ErrorKind::Storage, {"cannot read", folder / "none"}, [&] {
        read_checksums(folder / "none");
    });
}

TEST_CASE("a listed file that differs or is missing is named") {
    const TempFolder folder;
    std::filesystem::create_directories(folder / "in");
    test::write_text(folder / "in/a", "first");
    test::write_text(folder / "b", "second");
    test::write_text(folder / "not listed", "anything");
    const Checksums checksums = {{"in/a", xxh64_hex("first")}, {"b", xxh64_hex("second")}};
    CHECK_NOTHROW(verify_checksums(folder.path(), checksums, From::Disk));
    test::write_text(folder / "in/a", "firsu");
    expect_error(ErrorKind::Data,
                 {"in/a is damaged", xxh64_hex("first"), xxh64_hex("firsu"), folder / "in/a"},
                 [&] { verify_checksums(folder.path(), checksums, From::Anywhere); });
    std::filesystem::remove(folder / "in/a");
    expect_error(ErrorKind::Data, {"in/a is missing"}, [&] {
        verify_checksums(folder.path(), checksums, From::Disk);
    });
}

TEST_SUITE_END();

}  // namespace
}  // namespace dflash::io
