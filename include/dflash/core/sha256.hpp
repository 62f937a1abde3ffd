// SPDX-License-Identifier: Apache-2.0
// SHA-256 (FIPS 180-4): names and checksums of files whose content decides what a program runs.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace dflash {

/// Hashes bytes as they come. Not thread-safe.
class Sha256 {
  public:
    Sha256();

    void add(std::span<const std::byte> bytes);
    void add(std::string_view text);

    /// Adds the length of `text` and then the text: a list of fields hashed this way differs from
    /// every other list, also where their concatenations are equal.
    void add_field(std::string_view text);

    /// 64 lower-case hexadecimal digits. Nothing may be added afterwards.
    std::string finish();

  private:
    void compress(const std::byte* block);

    std::array<std::uint32_t, 8> state_;
    std::array<std::byte, 64> pending_{};
    std::size_t num_pending_ = 0;
    std::uint64_t num_bytes_ = 0;
};

/// Hash of one text.
std::string sha256_hex(std::string_view text);

}  // namespace dflash
