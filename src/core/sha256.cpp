// SPDX-License-Identifier: Apache-2.0
// Written from FIPS 180-4, sections 4.1.2, 5 and 6.2; the names of the working variables are the
// standard's. Of its own because the only other use of a cryptographic library would be this one
// function.
#include <dflash/core/sha256.hpp>

#include <algorithm>
#include <bit>
#include <cstring>
#include <fmt/format.h>

namespace dflash {
namespace {

// First 32 bits of the fractional parts of the cube roots of the first 64 primes (section 4.2.2).
constexpr std::array<std::uint32_t, 64> kRoundConstants = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

std::uint32_t load_big_endian(const std::byte* bytes) {
    std::uint32_t word = 0;
    for (int i = 0; i < 4; ++i) {
        word = word << 8 | std::to_integer<std::uint32_t>(bytes[i]);
    }
    return word;
}

}  // namespace

Sha256::Sha256()
    : state_{0x6a09e667,
             0xbb67ae85,
             0x3c6ef372,
             0xa54ff53a,
             0x510e527f,
             0x9b05688c,
             0x1f83d9ab,
             0x5be0cd19} {}

void Sha256::add(std::span<const std::byte> bytes) {
    num_bytes_ += bytes.size();
    while (!bytes.empty()) {
        const std::size_t count = std::min(bytes.size(), pending_.size() - num_pending_);
        std::memcpy(pending_.data() + num_pending_, bytes.data(), count);
        num_pending_ += count;
        bytes = bytes.subspan(count);
        if (num_pending_ == pending_.size()) {
            compress(pending_.data());
            num_pending_ = 0;
        }
    }
}

void Sha256::add(std::string_view text) {
    add(std::as_bytes(std::span(text.data(), text.size())));
}

void Sha256::add_field(std::string_view text) {
    add(fmt::format("{}:", text.size()));
    add(text);
}

std::string Sha256::finish() {
    // Padding (section 5.1.1): a one bit, zeros, and the length in bits as a 64-bit number.
    const std::uint64_t num_bits = num_bytes_ * 8;
    const std::byte one_bit{0x80};
    add(std::span(&one_bit, 1));
    const std::byte zero{0};
    while (num_pending_ != pending_.size() - sizeof(num_bits)) {
        add(std::span(&zero, 1));
    }
    std::array<std::byte, sizeof(num_bits)> length{};
    for (std::size_t i = 0; i < length.size(); ++i) {
        length[i] = static_cast<std::byte>(num_bits >> (56 - 8 * i));
    }
    add(length);
    std::string hex;
    for (const std::uint32_t word : state_) {
        hex += fmt::format("{:08x}", word);
    }
    return hex;
}

void Sha256::compress(const std::byte* block) {
    std::array<std::uint32_t, 64> w{};
    for (std::size_t t = 0; t < 16; ++t) {
        w[t] = load_big_endian(block + 4 * t);
    }
    for (std::size_t t = 16; t < 64; ++t) {
        const std::uint32_t sigma0 =
            std::rotr(w[t - 15], 7) ^ std::rotr(w[t - 15], 18) ^ (w[t - 15] >> 3);
        const std::uint32_t sigma1 =
            std::rotr(w[t - 2], 17) ^ std::rotr(w[t - 2], 19) ^ (w[t - 2] >> 10);
        w[t] = w[t - 16] + sigma0 + w[t - 7] + sigma1;
    }
    auto [a, b, c, d, e, f, g, h] = state_;
    for (std::size_t t = 0; t < 64; ++t) {
        const std::uint32_t sum1 = std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25);
        const std::uint32_t choice = (e & f) ^ (~e & g);
        const std::uint32_t t1 = h + sum1 + choice + kRoundConstants[t] + w[t];
        const std::uint32_t sum0 = std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22);
        const std::uint32_t majority = (a & b) ^ (a & c) ^ (b & c);
        const std::uint32_t t2 = sum0 + majority;
        h = g;
        g = f;
        f = e;
        e = d + t1;
        d = c;
        c = b;
        b = a;
        a = t1 + t2;
    }
    const std::array<std::uint32_t, 8> added = {a, b, c, d, e, f, g, h};
    for (std::size_t i = 0; i < state_.size(); ++i) {
        state_[i] += added[i];
    }
}

std::string sha256_hex(std::string_view text) {
    Sha256 hash;
    hash.add(text);
    return hash.finish();
}

}  // namespace dflash
