// SPDX-License-Identifier: Apache-2.0
#include "expect_error.hpp"
#include "mutation.hpp"
#include "temp_folder.hpp"

#include <dflash/io/jsonl.hpp>

#include <doctest/doctest.h>
#include <zlib.h>
#include <zstd.h>

namespace dflash::io {
namespace {

using test::expect_error;
using test::TempFolder;

std::string gzip(std::string_view text) {
    z_stream stream{};
    REQUIRE(::deflateInit2(&stream, 6, Z_DEFLATED, MAX_WBITS + 16, 8, Z_DEFAULT_STRATEGY) == Z_OK);
    std::string out(::deflateBound(&stream, text.size()), '\0');
    std::string in(text);
    stream.next_in = reinterpret_cast<Bytef*>(in.data());
    stream.avail_in = static_cast<uInt>(in.size());
    stream.next_out = reinterpret_cast<Bytef*>(out.data());
    stream.avail_out = static_cast<uInt>(out.size());
    REQUIRE(::deflate(&stream, Z_FINISH) == Z_STREAM_END);
    out.resize(stream.total_out);
    ::deflateEnd(&stream);
    return out;
}

std::string zstd(std::string_view text) {
    std::string out(::ZSTD_compressBound(text.size()), '\0');
    const std::size_t size = ::ZSTD_compress(out.data(), out.size(), text.data(), text.size(), 3);
    REQUIRE(::ZSTD_isError(size) == 0);
    out.resize(size);
    return out;
}

std::span<const std::byte> bytes_of(std::string_view text) {
    return std::as_bytes(std::span(text.data(), text.size()));
}

/// Text that does not pack to almost nothing: `lines` lines of random letters.
std::string random_lines(int lines) {
    RandomStream random(14, Purpose::Test, 0, 0);
    std::string out;
    for (int i = 0; i < lines; ++i) {
        const std::uint64_t length = random.below(200);
        for (std::uint64_t j = 0; j < length; ++j) {
            out += static_cast<char>('a' + random.below(26));
        }
        out += '\n';
    }
    return out;
}

TEST_SUITE_BEGIN("io.jsonl");

TEST_CASE("lines are split at LF only, stripped, numbered and placed") {
    const TempFolder folder;
    const std::string path = folder / "rows.jsonl";
    const std::string text =
        "{\"a\":1}\r\n"
        "\n"
        " \t {\"b\": 2}\t \r\n"
        "\xEF\xBB\xBF{\"c\":3}\n"
        " \r\n"
        "\xEF\xBB\xBF\n"
        "{\"d\":\"\xE2\x80\xA8\xC2\x85\"}\r{\"e\":1}\n"
        "last";
    test::write_text(path, text);
    const JsonLines lines(path);
    const std::vector<std::string_view> expected = {
        "{\"a\":1}",
        "",
        "{\"b\": 2}",
        "{\"c\":3}",
        "",
        "",
        "{\"d\":\"\xE2\x80\xA8\xC2\x85\"}\r{\"e\":1}",
        "last",
    };
    REQUIRE(lines.size() == static_cast<std::int64_t>(expected.size()));
    std::int64_t offset = 0;
    for (std::int64_t number = 1; number <= lines.size(); ++number) {
        CAPTURE(number);
        const Line line = lines.line(number);
        CHECK(line.number == number);
        CHECK(line.offset == offset);
        CHECK(line.text == expected[static_cast<std::size_t>(number - 1)]);
        offset = static_cast<std::int64_t>(text.find('\n', static_cast<std::size_t>(offset))) + 1;
    }
    CHECK(lines.place(3) == path + ":3");
    CHECK(lines.path() == path);
    CHECK(lines.bytes() == text);
    CHECK(lines.compression() == Compression::None);
    CHECK_FALSE(lines.ends_in_newline());
    expect_error(ErrorKind::Internal, {"line 0 of"}, [&] { (void)lines.line(0); });
    expect_error(ErrorKind::Internal, {"line 9 of", "which has 8"}, [&] { (void)lines.line(9); });
}

TEST_CASE("the end of a file makes no line of its own") {
    const TempFolder folder;
    const std::tuple<const char*, std::int64_t, bool> cases[] = {{"", 0, false},
                                                                 {"\n", 1, true},
                                                                 {"a", 1, false},
                                                                 {"a\n", 1, true},
                                                                 {"a\n\n", 2, true},
                                                                 {"a\nb", 2, false}};
    for (const auto& [text, count, newline] : cases) {
        CAPTURE(text);
        test::write_text(folder / "a", text);
        const JsonLines lines(folder / "a");
        CHECK(lines.size() == count);
        CHECK(lines.ends_in_newline() == newline);
        if (count > 0) {
            CHECK(lines.line(1).text == (text[0] == 'a' ? "a" : ""));
            CHECK(lines.line(count).number == count);
        }
    }
}

TEST_CASE("packed files are read by what they are, not by their name") {
    const TempFolder folder;
    const std::string text = random_lines(6000);
    REQUIRE(text.size() > 500'000);  // more than one piece of unpacking
    const std::string half1 = text.substr(0, 1000);
    const std::string half2 = text.substr(1000);
    const std::tuple<std::string, std::string, Compression> cases[] = {
        {"a.jsonl.gz", gzip(text), Compression::Gzip},
        {"b.jsonl", gzip(text), Compression::Gzip},
        {"c.gz", gzip(half1) + gzip(half2), Compression::Gzip},
        {"d.gz", gzip(text) + std::string(512, '\0'), Compression::Gzip},
        {"e.jsonl.zst", zstd(text), Compression::Zstd},
        {"f", zstd(half1) + zstd(half2), Compression::Zstd},
        // A skippable frame of 4 bytes, as parallel packers write one first.
        {"g.zst", std::string("\x5a\x2a\x4d\x18\4\0\0\0abcd", 12) + zstd(text), Compression::Zstd},
        {"plain.gz", text, Compression::None},
    };
    for (const auto& [name, content, compression] : cases) {
        CAPTURE(name);
        test::write_text(folder / name, content);
        JsonLines opened(folder / name);
        const JsonLines lines(std::move(opened));
        CHECK(lines.compression() == compression);
        CHECK(lines.bytes() == text);
        CHECK(lines.size() == 6000);
        CHECK(lines.line(6000).offset ==
              static_cast<std::int64_t>(text.rfind('\n', text.size() - 2) + 1));
    }
    CHECK(unpack(bytes_of(gzip("")), "p").empty());
    CHECK(unpack(bytes_of(zstd("")), "p").empty());
}

TEST_CASE("damaged or cut packed files are data errors with the place") {
    const std::string text = random_lines(50);
    for (const std::string& packed : {gzip(text), zstd(text)}) {
        const bool is_gzip = packed[0] == '\x1f';
        CAPTURE(is_gzip);
        for (const std::size_t size : {packed.size() - 1, packed.size() / 2, std::size_t{12}}) {
            CAPTURE(size);
            expect_error(ErrorKind::Data,
                         {is_gzip ? "gzip data are cut short" : "zstd data are cut short",
                          "at byte " + std::to_string(size),
                          "(p)",
                          "again"},
                         [&] { unpack(bytes_of(packed).first(size), "p"); });
        }
        expect_error(ErrorKind::Data, {"damaged"}, [&] {
            unpack(bytes_of(packed + "junk after the end"), "p");
        });
    }
    // A flipped bit in the checksum at the end of gzip data.
    std::string flipped = gzip(text);
    flipped[flipped.size() - 6] ^= 1;
    expect_error(ErrorKind::Data, {"gzip data are damaged", "incorrect data check"}, [&] {
        unpack(bytes_of(flipped), "p");
    });
    expect_error(
        ErrorKind::Data, {"expected a gzip or zstd file"}, [&] { unpack(bytes_of("text"), "p"); });
}

TEST_CASE("any damage to packed data is an error or harmless") {
    const std::string text = random_lines(3);
    for (const std::string& packed : {gzip(text), zstd(text)}) {
        for (std::uint64_t i = 0; i < 1000; ++i) {
            RandomStream random(15, Purpose::Test, 0, i);
            const std::string damaged =
                test::mutate(packed, std::string_view("\0\xff\x1f\x8b", 4), random);
            try {
                unpack(bytes_of(damaged), "p");
            } catch (const Error& error) {
                CHECK(error.kind() == ErrorKind::Data);
            }
        }
    }
}

TEST_CASE("what cannot be read is a configuration error") {
    const TempFolder folder;
    expect_error(ErrorKind::Config, {folder / "none", "No such file"}, [&] {
        const JsonLines lines(folder / "none");
    });
    expect_error(ErrorKind::Data, {"is a folder"}, [&] { const JsonLines lines(folder.path()); });
}

TEST_SUITE_END();

}  // namespace
}  // namespace dflash::io
