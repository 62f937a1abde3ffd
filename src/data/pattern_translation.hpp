// SPDX-License-Identifier: Apache-2.0
// Split patterns of tokenizer.json are written for Oniguruma (Ruby syntax). What of it means the
// same in PCRE2 is taken over, classes whose members differ are written out, and everything else is
// refused: a pattern that is understood half would give other tokens without a word.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace dflash::data {

/// The pattern for PCRE2 (UTF, UCP, newline LF).
///
/// * \s and \S become the white space of the reference (no U+180E, unlike PCRE2 with UCP).
/// * \p{..} and \d become general categories with the characters added after Unicode 14.
/// * (?i:...) holds only ASCII that folds one character to one.
///
/// Throws Error{Config} with `where` for constructs whose meaning differs or is not known.
std::string translate_pattern(std::string_view pattern, const std::string& where);

/// The same for bytes (no UTF, no UCP) of ASCII text, where classes are a bitmap each and matching
/// takes a fraction of the time. It may only be matched against text of which every character it
/// looks at is ASCII. Empty for patterns that look behind or name a character outside ASCII.
/// `pattern` has been translated without an error.
std::optional<std::string> translate_for_ascii(std::string_view pattern, const std::string& where);

}  // namespace dflash::data
