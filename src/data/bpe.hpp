// SPDX-License-Identifier: Apache-2.0
// Byte-level BPE: the bytes of a piece, merged pair by pair, always the pair of the lowest rank and
// of those the leftmost.
#pragma once

#include <dflash/core/types.hpp>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace dflash::data {

/// A token and the bytes of the piece it stands for.
struct PieceToken {
    TokenId id = -1;
    std::size_t begin = 0;
    std::size_t end = 0;
};

/// Open-addressing map from a pair of tokens to its merge.
class MergeTable {
  public:
    struct Merge {
        std::uint32_t rank = 0;
        TokenId joined = -1;
    };

    explicit MergeTable(std::size_t num_merges);

    /// Adds a merge; a pair that is there gets the new one (what a map read from a list does).
    void set(TokenId left, TokenId right, Merge merge);
    const Merge* find(TokenId left, TokenId right) const;

  private:
    struct Entry {
        std::uint64_t pair = kFree;
        Merge merge;
    };

    static constexpr std::uint64_t kFree = ~std::uint64_t{0};

    std::size_t slot_of(std::uint64_t pair) const;

    std::vector<Entry> entries_;  // a power of two, at most half full
    unsigned shift_;
};

/// Vocabulary and merges. encode() may be called from several threads.
class BpeModel {
  public:
    struct Pair {
        TokenId left = -1;
        TokenId right = -1;
        TokenId joined = -1;  ///< the token that both together are
    };

    /// `bytes_of` holds the bytes of each token, nothing for ids that no byte-level name has;
    /// `merges` in order of rank.
    BpeModel(std::vector<std::optional<std::string>> bytes_of,
             const std::vector<Pair>& merges,
             bool ignore_merges);

    std::optional<TokenId> id_of(std::string_view bytes) const;

    /// Number of the 256 bytes that have no token.
    int num_missing_bytes() const;

    struct Space {
        struct Symbol {
            TokenId id = -1;  // -1: merged into the one to its left
            std::uint32_t next = 0;
            std::uint32_t previous = 0;
            std::size_t begin = 0;
            std::size_t end = 0;
        };

        struct Candidate {
            std::uint32_t rank = 0;
            std::uint32_t left = 0;
            TokenId joined = -1;
        };

        std::vector<Symbol> symbols;
        std::vector<Candidate> heap;
    };

    /// Appends the tokens of a piece; returns the number of bytes that have no token, which leave
    /// no trace (their neighbours are merged as if they stood side by side).
    std::int64_t encode(std::string_view piece,
                        Space& space,
                        std::vector<PieceToken>& tokens) const;

  private:
    std::int64_t merge(std::string_view piece, Space& space, std::vector<PieceToken>& tokens) const;
    void push(Space& space, std::uint32_t left) const;

    // Whether merging the bytes of a token gives that token, found when first asked for: most
    // pieces of ordinary text are one token, and need one look-up instead of a merge.
    enum class Whole : std::uint8_t { Unknown, Yes, No };

    std::vector<std::optional<std::string>> bytes_of_;
    std::unordered_map<std::string_view, TokenId> ids_;  // keys lie in bytes_of_
    std::array<TokenId, 256> byte_ids_{};
    std::size_t max_bytes_ = 0;
    MergeTable merges_;
    bool ignore_merges_;
    std::unique_ptr<std::atomic<Whole>[]> whole_;
};

}  // namespace dflash::data
