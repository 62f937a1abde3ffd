// SPDX-License-Identifier: Apache-2.0
// Byte-level BPE from an HF tokenizer.json: added tokens, NFC, the split patterns, merges.
#pragma once

#include <dflash/core/types.hpp>
#include <dflash/io/json.hpp>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace dflash::data {

/// Half-open byte range of a text.
struct ByteRange {
    std::int64_t begin = 0;
    std::int64_t end = 0;

    friend bool operator==(const ByteRange&, const ByteRange&) = default;
};

struct Encoding {
    std::vector<TokenId> ids;
    /// Bytes of the *given* text (before NFC) that each token stands for; only if asked for. A
    /// token that holds part of a character covers all of that character.
    std::vector<ByteRange> ranges;
    std::int64_t vanished_bytes =
        0;  ///< bytes the vocabulary has no token for (they leave no trace in ids)
};

struct AddedToken {
    TokenId id = -1;
    std::string content;
    bool special = false;
};

/// Immutable after loading; all members may be called concurrently.
class Tokenizer {
  public:
    /// Reads a tokenizer.json. Throws Error{Config} for a file of another kind (model type,
    /// pre-tokenizer, normalizer, split pattern: what was found, what is supported). from_file also
    /// takes the added tokens that only a tokenizer_config.json in the same folder defines.
    static Tokenizer from_file(const std::string& path);
    static Tokenizer from_json(const io::Json& json, const std::string& where);

    Tokenizer(Tokenizer&&) noexcept;
    Tokenizer& operator=(Tokenizer&&) noexcept;
    ~Tokenizer();

    /// Ids without adding special tokens. Added tokens in the text become their ids. Throws
    /// Error{Data} for text that is not UTF-8. Time is O(n log n) in bytes for any text.
    Encoding encode(std::string_view text, bool with_ranges = false) const;

    /// Bytes of the tokens as text, special tokens kept; broken UTF-8 becomes U+FFFD as in HF
    /// tokenizers. Ids that no token has add nothing.
    std::string decode(std::span<const TokenId> ids) const;

    /// Id of an added token by its text, else of a token of the vocabulary by its name as the file
    /// writes it (in byte letters: a space is U+0120).
    std::optional<TokenId> id_of(std::string_view token_content) const;

    /// Rising ids.
    const std::vector<AddedToken>& added_tokens() const;

    /// One past the largest id.
    std::int64_t num_ids() const;

  private:
    struct Impl;
    std::unique_ptr<const Impl> impl_;
    explicit Tokenizer(std::unique_ptr<const Impl> impl);
};

}  // namespace dflash::data
