// SPDX-License-Identifier: Apache-2.0
// A compiled split pattern: cuts a text into its matches and what lies between them.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace dflash::data {

/// What matching writes to. One per thread; serves all patterns.
class MatchSpace {
  public:
    MatchSpace();
    ~MatchSpace();
    MatchSpace(const MatchSpace&) = delete;  // one owner of PCRE2's blocks
    MatchSpace& operator=(const MatchSpace&) = delete;

  private:
    friend class SplitPattern;
    struct Blocks;
    std::unique_ptr<Blocks> blocks_;
};

/// Immutable; may be used from several threads, each with a MatchSpace of its own.
class SplitPattern {
  public:
    /// `pattern` as tokenizer.json writes it. Throws Error{Config} if it cannot be translated or
    /// compiled.
    /// `ascii_code`: parts of ASCII text are matched by code of their own; the pieces are the same.
    SplitPattern(std::string_view pattern, const std::string& where, bool ascii_code = true);
    /// A fixed text in place of a pattern.
    static SplitPattern from_literal(std::string_view text, const std::string& where);

    SplitPattern(SplitPattern&&) noexcept;
    SplitPattern& operator=(SplitPattern&&) noexcept;
    ~SplitPattern();

    /// Appends the pieces of `text` (well-formed UTF-8), none empty, which together are the text.
    /// Lookaround sees nothing outside of it. Throws Error{Data} if PCRE2 gives up.
    void split(std::string_view text,
               MatchSpace& space,
               std::vector<std::string_view>& pieces) const;

  private:
    struct Code;
    std::unique_ptr<const Code> code_;
    std::unique_ptr<const Code> ascii_code_;  // empty: there is none
    explicit SplitPattern(std::unique_ptr<const Code> code);

    // Result of PCRE2 for the match at or behind `start`. `ascii_end`: of the run of ASCII there.
    int match(std::string_view text,
              std::size_t start,
              std::size_t ascii_end,
              const MatchSpace& space) const;
};

}  // namespace dflash::data
