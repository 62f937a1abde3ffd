// SPDX-License-Identifier: Apache-2.0
// The pre_tokenizer part of tokenizer.json: steps that each cut the pieces of the step before.
#pragma once

#include "split_pattern.hpp"

#include <dflash/io/json.hpp>

#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace dflash::data {

/// Cuts out numbers (Nd, Nl, No), one by one or in runs.
struct DigitsStep {
    bool individual = false;
};

/// Immutable after construction.
class PreTokenizer {
  public:
    /// Reads Split, Digits, ByteLevel and Sequence; ByteLevel has to come last. Throws
    /// Error{Config} for anything else.
    static PreTokenizer from_json(const io::Json& json, const std::string& where);

    /// Working memory of split(); one per thread.
    struct Space {
        MatchSpace match;
        std::vector<std::string_view> pieces;
        std::vector<std::string_view> finer;
    };

    /// Pieces of `text` (well-formed UTF-8) in order, none empty; they lie in `text` and live in
    /// `space` until the next call.
    const std::vector<std::string_view>& split(std::string_view text, Space& space) const;

  private:
    using Step = std::variant<SplitPattern, DigitsStep>;

    PreTokenizer() = default;
    void add_step(const io::Json& json, const std::string& where);

    std::vector<Step> steps_;
    bool has_byte_level_ = false;
};

}  // namespace dflash::data
