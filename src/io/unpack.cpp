// SPDX-License-Identifier: Apache-2.0
// Unpacking of gzip (RFC 1952) and Zstandard (RFC 8878) files.
#include "compression.hpp"

#include <dflash/core/activity.hpp>
#include <dflash/core/error.hpp>
#include <dflash/core/scope.hpp>
#include <dflash/io/jsonl.hpp>

#include <algorithm>
#include <array>
#include <fmt/format.h>
#include <memory>
#include <new>
#include <zlib.h>
#include <zstd.h>

namespace dflash::io {
namespace {

constexpr std::size_t kPiece = 1 << 18;

[[noreturn]] void fail(std::string_view format,
                       std::string_view state,
                       std::size_t at,
                       const std::string& path,
                       std::string cause = {}) {
    throw Error(ErrorKind::Data,
                {.what = fmt::format("{} data are {} at byte {} of the file", format, state, at),
                 .where = path,
                 .cause = std::move(cause),
                 .hint = "Copy or download the file again"});
}

void unpack_gzip(std::span<const std::byte> packed,
                 const std::string& path,
                 const PieceSink& sink) {
    z_stream stream{};
    constexpr int kGzipOnly = 16;
    if (::inflateInit2(&stream, MAX_WBITS + kGzipOnly) != Z_OK) {
        throw std::bad_alloc();
    }
    const ScopeGuard closer([&stream] { ::inflateEnd(&stream); });
    const auto piece = std::make_unique<std::array<char, kPiece>>();
    std::size_t at = 0;
    bool in_member = true;
    while (in_member) {
        // zlib counts what it has to read in 32 bits.
        const std::size_t given = std::min<std::size_t>(packed.size() - at, 1U << 30);
        stream.next_in = reinterpret_cast<Bytef*>(const_cast<std::byte*>(packed.data() + at));
        stream.avail_in = static_cast<uInt>(given);
        stream.next_out = reinterpret_cast<Bytef*>(piece->data());
        stream.avail_out = static_cast<uInt>(kPiece);
        const int result = ::inflate(&stream, Z_NO_FLUSH);
        at += given - stream.avail_in;
        sink({piece->data(), kPiece - stream.avail_out});
        note_progress();
        if (result == Z_STREAM_END) {
            // Members may follow each other; zeros after the last one are padding.
            const auto rest = packed.subspan(at);
            in_member = std::any_of(
                rest.begin(), rest.end(), [](std::byte byte) { return byte != std::byte{0}; });
            ::inflateReset(&stream);
        } else if (result == Z_MEM_ERROR) {
            throw std::bad_alloc();
        } else if (result != Z_OK && result != Z_BUF_ERROR) {
            fail("gzip", "damaged", at, path, stream.msg == nullptr ? "" : stream.msg);
        } else if (at == packed.size() && stream.avail_out > 0) {
            fail("gzip", "cut short", at, path);
        }
    }
}

void unpack_zstd(std::span<const std::byte> packed,
                 const std::string& path,
                 const PieceSink& sink) {
    const std::unique_ptr<ZSTD_DStream, decltype(&ZSTD_freeDStream)> stream(::ZSTD_createDStream(),
                                                                            &ZSTD_freeDStream);
    if (!stream) {
        throw std::bad_alloc();
    }
    // Files packed with `zstd --long` have windows beyond the default limit of 128 MiB.
    ::ZSTD_DCtx_setParameter(
        stream.get(), ZSTD_d_windowLogMax, ZSTD_dParam_getBounds(ZSTD_d_windowLogMax).upperBound);
    const auto piece = std::make_unique<std::array<char, kPiece>>();
    ZSTD_inBuffer input{packed.data(), packed.size(), 0};
    for (;;) {
        ZSTD_outBuffer output{piece->data(), kPiece, 0};
        const std::size_t result = ::ZSTD_decompressStream(stream.get(), &output, &input);
        if (::ZSTD_isError(result) != 0) {
            fail("zstd", "damaged", input.pos, path, ::ZSTD_getErrorName(result));
        }
        sink({piece->data(), output.pos});
        note_progress();
        if (input.pos == input.size) {
            if (result == 0) {
                return;  // at the end of a frame
            }
            if (output.pos < output.size) {
                fail("zstd", "cut short", input.pos, path);
            }
        }
    }
}

}  // namespace

Compression compression_of(std::span<const std::byte> bytes) {
    const auto starts_with = [&](std::initializer_list<unsigned> magic) {
        return bytes.size() >= magic.size() &&
               std::equal(magic.begin(), magic.end(), bytes.begin(), [](unsigned m, std::byte b) {
                   return std::to_integer<unsigned>(b) == m;
               });
    };
    if (starts_with({0x1F, 0x8B})) {
        return Compression::Gzip;
    }
    // A skippable frame (RFC 8878 section 3.1.2) is what files of parallel packers begin with.
    const bool is_skippable = bytes.size() >= 4 && bytes[1] == std::byte{0x2A} &&
                              bytes[2] == std::byte{0x4D} && bytes[3] == std::byte{0x18} &&
                              (bytes[0] & std::byte{0xF0}) == std::byte{0x50};
    if (is_skippable || starts_with({0x28, 0xB5, 0x2F, 0xFD})) {
        return Compression::Zstd;
    }
    return Compression::None;
}

void unpack(std::span<const std::byte> packed, const std::string& path, const PieceSink& sink) {
    switch (compression_of(packed)) {
        case Compression::Gzip:
            return unpack_gzip(packed, path, sink);
        case Compression::Zstd:
            return unpack_zstd(packed, path, sink);
        case Compression::None:
            break;
    }
    throw Error(ErrorKind::Data,
                {.what = "expected a gzip or zstd file, its first bytes are others",
                 .where = path,
                 .cause = {},
                 .hint = {}});
}

std::string unpack(std::span<const std::byte> packed, const std::string& path) {
    std::string text;
    unpack(packed, path, [&text](std::string_view piece) { text += piece; });
    return text;
}

}  // namespace dflash::io
