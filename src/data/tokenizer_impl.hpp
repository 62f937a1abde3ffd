// SPDX-License-Identifier: Apache-2.0
// The parts of a tokenizer, between the reader of tokenizer.json and the use of them.
#pragma once

#include "added_token_finder.hpp"
#include "bpe.hpp"
#include "pretokenizer.hpp"

#include <dflash/data/tokenizer.hpp>

#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace dflash::data {

/// What encode() and decode() work with. Immutable once read.
struct TokenizerParts {
    bool nfc = false;
    PreTokenizer pre_tokenizer;
    BpeModel model;
    std::vector<AddedToken> added;  // rising ids

    // Tokens with "normalized" are looked for in what NFC made of the text between the others.
    AddedTokenFinder in_given_text;
    AddedTokenFinder in_normalized_text;

    std::unordered_map<std::string, TokenId> added_ids;  // by content
    std::unordered_map<std::string, TokenId> other_ids;  // names that are not made of byte letters
    std::vector<std::string> decoded;  // bytes by id; empty where there is no token
    std::int64_t num_ids = 0;
};

/// Checks a tokenizer.json and puts the parts together. `extra_added` is the added_tokens_decoder
/// of a tokenizer_config.json, or null. Throws Error{Config}.
TokenizerParts read_tokenizer_json(const io::Json& json,
                                   const io::Json* extra_added,
                                   const std::string& where);

struct Tokenizer::Impl {
    TokenizerParts parts;
};

}  // namespace dflash::data
