// SPDX-License-Identifier: Apache-2.0
#define XXH_INLINE_ALL  // the library is its header: nothing to find where the program runs

#include <dflash/core/activity.hpp>
#include <dflash/core/check.hpp>
#include <dflash/core/error.hpp>
#include <dflash/io/checksums.hpp>
#include <dflash/io/storage_error.hpp>

#include <cerrno>
#include <fcntl.h>
#include <filesystem>
#include <fmt/format.h>
#include <fstream>
#include <sstream>
#include <unistd.h>
#include <utility>
#include <vector>
#include <xxhash.h>

namespace dflash::io {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kPieceBytes = std::size_t{4} << 20;
constexpr std::size_t kHexDigits = 16;

/// A descriptor open for reading.
class InputDescriptor : NonCopyable {
  public:
    explicit InputDescriptor(const std::string& path) {
        do {
            descriptor_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
        } while (descriptor_ < 0 && errno == EINTR);
        if (descriptor_ < 0) {
            throw storage_error("cannot read", path, errno);
        }
    }

    ~InputDescriptor() { ::close(descriptor_); }

    int get() const { return descriptor_; }

  private:
    int descriptor_ = -1;
};

bool is_hash(std::string_view text) {
    return text.size() == kHexDigits &&
           text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

[[noreturn]] void not_a_list(const std::string& path, std::string what) {
    throw Error(ErrorKind::Data, {.what = std::move(what), .where = path, .cause = {}, .hint = {}});
}

}  // namespace

struct Xxh64::State {
    XXH64_state_t xxh{};
};

Xxh64::Xxh64() : state_(std::make_unique<State>()) {
    XXH64_reset(&state_->xxh, 0);
}

Xxh64::~Xxh64() = default;

void Xxh64::add(std::span<const std::byte> bytes) {
    XXH64_update(&state_->xxh, bytes.data(), bytes.size());
}

std::string Xxh64::hex() const {
    return fmt::format("{:016x}", XXH64_digest(&state_->xxh));
}

std::string xxh64_hex(std::string_view text) {
    Xxh64 hash;
    hash.add(std::as_bytes(std::span(text.data(), text.size())));
    return hash.hex();
}

std::string xxh64_of_file(const std::string& path, From from, const Between& between) {
    const InputDescriptor file(path);
    if (from == From::Disk) {
        ::posix_fadvise(file.get(), 0, 0, POSIX_FADV_DONTNEED);
    }
    ::posix_fadvise(file.get(), 0, 0, POSIX_FADV_SEQUENTIAL);
    std::vector<std::byte> piece(kPieceBytes);
    Xxh64 hash;
    for (;;) {
        note_progress();
        const ::ssize_t got = ::read(file.get(), piece.data(), piece.size());
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got < 0) {
            throw storage_error("cannot read", path, errno);
        }
        if (got == 0) {
            break;
        }
        hash.add(std::span(piece).first(static_cast<std::size_t>(got)));
        if (between) {
            between(got);
        }
    }
    if (from == From::Disk) {
        ::posix_fadvise(file.get(), 0, 0, POSIX_FADV_DONTNEED);
    }
    return hash.hex();
}

std::string to_text(const Checksums& checksums) {
    std::string text;
    for (const auto& [path, hash] : checksums) {
        DFLASH_CHECK(path.find('\n') == std::string::npos, "a path of two lines: {}", path);
        text += fmt::format("{}  {}\n", hash, path);
    }
    return text + fmt::format("# {}\n", xxh64_hex(text));
}

Checksums read_checksums(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    std::ostringstream bytes;
    errno = 0;
    bytes << file.rdbuf();
    if (!file.good() || bytes.bad()) {
        throw storage_error("cannot read", path, errno != 0 ? errno : EIO);
    }
    const std::string text = bytes.str();
    Checksums checksums;
    std::size_t at = 0;
    while (at < text.size()) {
        const std::size_t end = text.find('\n', at);
        const std::string_view line = std::string_view(text).substr(at, end - at);
        if (line.starts_with("# ")) {
            const std::string expected = xxh64_hex(std::string_view(text).substr(0, at));
            if (line.substr(2) != expected || end + 1 != text.size()) {
                not_a_list(
                    path,
                    fmt::format("the list of checksums is damaged: its own is {}, it says {}",
                                expected,
                                line.substr(2)));
            }
            return checksums;
        }
        if (end == std::string::npos || line.size() < kHexDigits + 3 ||
            !is_hash(line.substr(0, kHexDigits)) || line.substr(kHexDigits, 2) != "  ") {
            break;
        }
        checksums.emplace(line.substr(kHexDigits + 2), line.substr(0, kHexDigits));
        at = end + 1;
    }
    not_a_list(path, "the list of checksums is damaged: it is no whole list");
}

void verify_checksums(const std::string& folder,
                      const Checksums& checksums,
                      From from,
                      const Between& between) {
    for (const auto& [name, expected] : checksums) {
        const std::string path = (fs::path(folder) / name).string();
        std::error_code ignored;
        if (!fs::exists(path, ignored)) {
            throw Error(ErrorKind::Data,
                        {.what = fmt::format("{} is missing", name),
                         .where = path,
                         .cause = {},
                         .hint = {}});
        }
        const std::string got = xxh64_of_file(path, from, between);
        if (got != expected) {
            throw Error(ErrorKind::Data,
                        {.what = fmt::format(
                             "{} is damaged: its checksum is {}, expected {}", name, got, expected),
                         .where = path,
                         .cause = {},
                         .hint = {}});
        }
    }
}

}  // namespace dflash::io
