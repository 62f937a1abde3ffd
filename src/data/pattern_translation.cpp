// SPDX-License-Identifier: Apache-2.0
#include "pattern_translation.hpp"

#include "character_classes.hpp"
#include "unicode_tables.hpp"
#include "utf8.hpp"

#include <dflash/core/error.hpp>
#include <dflash/core/text.hpp>

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdint>
#include <fmt/format.h>
#include <functional>
#include <utf8proc.h>
#include <utility>
#include <vector>

namespace dflash::data {
namespace {

constexpr char32_t kLastCodePoint = 0x10FFFF;

// C and Cn shrink with every version of Unicode, which additions cannot express.
constexpr std::array<std::string_view, 32> kCategories{
    "L",  "Ll", "Lm", "Lo", "Lt", "Lu", "M", "Mc", "Me", "Mn", "N",  "Nd", "Nl", "No", "P",  "Pc",
    "Pd", "Pe", "Pf", "Pi", "Po", "Ps", "S", "Sc", "Sk", "Sm", "So", "Z",  "Zl", "Zp", "Zs", "Cc"};

// Full case folding maps one character to each of these (U+00DF, U+FB00 ...), and Oniguruma follows
// it; PCRE2 folds single characters only. Unicode 16, CaseFolding.txt, status F.
constexpr std::array<std::string_view, 5> kFoldedPairs{"ss", "ff", "fi", "fl", "st"};

bool is_ascii_alnum(char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

bool is_digit(char c) {
    return c >= '0' && c <= '9';
}

// As members of a character class.
std::string ranges_text(std::span<const CodePointRange> ranges) {
    std::string text;
    for (const CodePointRange& range : ranges) {
        text += fmt::format("\\x{{{:X}}}", static_cast<std::uint32_t>(range.first));
        if (range.last != range.first) {
            text += fmt::format("-\\x{{{:X}}}", static_cast<std::uint32_t>(range.last));
        }
    }
    return text;
}

// The complement of white_space(), so that \S can stand inside a class.
std::string no_white_space_text() {
    std::vector<CodePointRange> gaps;
    char32_t next = 0;
    for (const CodePointRange& range : white_space()) {
        gaps.push_back({next, range.first - 1});
        next = range.last + 1;
    }
    gaps.push_back({next, kLastCodePoint});
    return ranges_text(gaps);
}

// A byte that ASCII text does not have, for classes that would otherwise be empty.
constexpr std::string_view kNeverInAscii = "\\x{80}";

// The ASCII characters of a set, as members of a character class.
std::string ascii_members(const std::function<bool(char32_t)>& is_member) {
    std::string text(kNeverInAscii);
    for (char32_t c = 0; c < 0x80; ++c) {
        if (is_member(c)) {
            text += fmt::format("\\x{{{:X}}}", static_cast<std::uint32_t>(c));
        }
    }
    return text;
}

// Contents of a character class that holds a general category.
std::string category_text(std::string_view category, bool ascii) {
    if (ascii) {
        return ascii_members([category](char32_t c) {
            return std::string_view(utf8proc_category_string(static_cast<utf8proc_int32_t>(c)))
                .starts_with(category);
        });
    }
    std::string text = fmt::format("\\p{{{}}}", category);
    for (const CategoryAdditions& additions : category_additions()) {
        if (additions.category.starts_with(category)) {
            text += ranges_text(additions.ranges);
        }
    }
    return text;
}

// Goes through the pattern once; each function takes what it understands and refuses the rest.
class Translator {
  public:
    Translator(std::string_view pattern, const std::string& where, bool ascii)
        : pattern_(pattern), where_(where), ascii_(ascii) {}

    // Whether it looks behind or names a character outside ASCII.
    bool needs_more_than_ascii() const { return needs_more_than_ascii_; }

    std::string run() {
        while (at_ < pattern_.size()) {
            step();
        }
        if (!caseless_groups_.empty()) {
            refuse("a group that is not closed");
        }
        return std::move(out_);
    }

  private:
    [[noreturn]] void refuse(std::string_view found) const {
        throw Error(ErrorKind::Config,
                    {.what = fmt::format("pre_tokenizer: the split pattern {} holds {} at byte {}, "
                                         "which this program does not translate",
                                         quote(pattern_, 400),
                                         found,
                                         at_),
                     .where = where_,
                     .cause = "",
                     .hint = "supported are literals, | ? * +, {n,m}, (?:..), (?i:..), lookaround, "
                             "character classes, \\s \\S \\d \\p{..} \\P{..}"});
    }

    char peek(std::size_t ahead = 0) const {
        return at_ + ahead < pattern_.size() ? pattern_[at_ + ahead] : '\0';
    }

    bool caseless() const { return !caseless_groups_.empty() && caseless_groups_.back(); }

    void step() {
        const char c = peek();
        if (c != '\\' && !is_literal(c)) {
            literals_.clear();
        }
        switch (c) {
            case '\\':
                escape(/*in_class=*/false);
                break;
            case '[':
                character_class();
                break;
            case '(':
                open_group();
                break;
            case ')':
                if (caseless_groups_.empty()) {
                    refuse("a ) without (");
                }
                caseless_groups_.pop_back();
                copy(1);
                break;
            case '?':
            case '*':
            case '+':
                copy(1);
                if (peek() == '?' || peek() == '+') {  // lazy, possessive: the same in both
                    copy(1);
                }
                break;
            case '{':
                repetition();
                break;
            case '|':
            case '.':
                copy(1);
                break;
            case '^':  // Ruby's anchors are those of a line, PCRE2's of the text
            case '$':
                refuse(fmt::format("the anchor {}", c));
            default:
                literal();
        }
    }

    static bool is_literal(char c) {
        return std::string_view("\\[()?*+{|.^$").find(c) == std::string_view::npos;
    }

    void copy(std::size_t length) {
        out_.append(pattern_, at_, length);
        at_ += length;
    }

    // One character that stands for itself, space and # included.
    void literal() {
        const Utf8Step found = step_utf8(pattern_, at_);
        if (!found.valid) {
            refuse("broken UTF-8");
        }
        note_literal(found.code_point);
        needs_more_than_ascii_ = needs_more_than_ascii_ || found.code_point >= 0x80;
        copy(found.length);
    }

    // Refuses literals in (?i:...) that fold to or from several characters.
    void note_literal(char32_t c) {
        if (!caseless()) {
            return;
        }
        if (c >= 0x80) {
            refuse("a character outside ASCII in a caseless group");
        }
        literals_ += static_cast<char>(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c);
        for (const std::string_view pair : kFoldedPairs) {
            if (std::string_view(literals_).ends_with(pair)) {
                refuse(fmt::format("the letters \"{}\" in a caseless group", pair));
            }
        }
    }

    void open_group() {
        // Longest first, so that (?<= is not taken for (?<.
        static constexpr std::array<std::string_view, 7> kOpenings{
            "(?<=", "(?<!", "(?i:", "(?:", "(?=", "(?!", "(?>"};
        for (const std::string_view opening : kOpenings) {
            if (pattern_.substr(at_).starts_with(opening)) {
                caseless_groups_.push_back(opening == "(?i:" || caseless());
                needs_more_than_ascii_ = needs_more_than_ascii_ || opening.starts_with("(?<");
                copy(opening.size());
                return;
            }
        }
        if (peek(1) == '?' || peek(1) == '*') {
            refuse(fmt::format("the group {}", quote(pattern_.substr(at_, 4))));
        }
        caseless_groups_.push_back(caseless());
        copy(1);
    }

    // {n}, {n,} or {n,m}. Ruby reads {,m} as {0,m}, {n}? as (?:{n})? and {n,m}+ as (?:{n,m})+;
    // PCRE2 does not.
    void repetition() {
        std::size_t end = at_ + 1;
        const auto digits = [&] {
            const std::size_t begin = end;
            while (end < pattern_.size() && is_digit(pattern_[end])) {
                ++end;
            }
            return end - begin;
        };
        const std::size_t first = digits();
        const bool has_comma = end < pattern_.size() && pattern_[end] == ',';
        if (has_comma) {
            ++end;
            digits();
        }
        if (first == 0 || end >= pattern_.size() || pattern_[end] != '}') {
            refuse("a { that begins no {n}, {n,} or {n,m}");
        }
        ++end;
        const char next = end < pattern_.size() ? pattern_[end] : '\0';
        if (next == '+' || (next == '?' && !has_comma)) {
            refuse(fmt::format("}}{}", next));
        }
        copy(end - at_);
        if (next == '?') {
            copy(1);
        }
    }

    // Oniguruma knows sets inside sets and intersections, which PCRE2 would read as members.
    void character_class() {
        copy(1);
        if (peek() == '^') {
            copy(1);
        }
        if (peek() == ']') {
            refuse("a class that begins with ]");
        }
        while (peek() != ']') {
            if (at_ >= pattern_.size()) {
                refuse("a class that is not closed");
            }
            if (peek() == '[') {
                refuse("a class inside a class");
            }
            if (peek() == '&' && peek(1) == '&') {
                refuse("an intersection of classes");
            }
            if (peek() == '\\') {
                escape(/*in_class=*/true);
                continue;
            }
            literals_.clear();  // members are alternatives, not neighbours
            literal();
        }
        literals_.clear();
        copy(1);
    }

    // Letters after \ mean different things in many cases (\v, \h, \w), so only known ones pass.
    void escape(bool in_class) {
        const char c = peek(1);
        if (c == '\0') {
            refuse("a \\ at its end");
        }
        if (c == 'r' || c == 'n' || c == 't' || c == 'f') {
            literals_.clear();
            copy(2);
        } else if (c == 'u' || c == 'x') {
            code_point();
        } else if (!is_ascii_alnum(c) && static_cast<unsigned char>(c) < 0x80) {
            ++at_;
            note_literal(static_cast<unsigned char>(c));
            out_ += '\\';
            copy(1);
        } else {
            literals_.clear();
            escaped_class(c, in_class);
        }
    }

    // \uHHHH and \x{H...}
    void code_point() {
        const bool braces = peek(1) == 'x' && peek(2) == '{';
        const std::size_t begin = at_ + (braces ? 3 : 2);
        std::size_t end = begin;
        while (end < pattern_.size() && std::isxdigit(static_cast<unsigned char>(pattern_[end])) &&
               (braces || end < begin + 4)) {
            ++end;
        }
        const std::size_t digits = end - begin;
        const bool closed = !braces || (end < pattern_.size() && pattern_[end] == '}');
        if (!closed || digits == 0 || digits > 6 || (!braces && (peek(1) == 'x' || digits != 4))) {
            refuse("an escape other than \\uHHHH and \\x{H..}");
        }
        const std::string hex(pattern_.substr(begin, digits));
        const auto value = static_cast<char32_t>(std::stoul(hex, nullptr, 16));
        note_literal(value);
        needs_more_than_ascii_ = needs_more_than_ascii_ || value >= 0x80;
        out_ += fmt::format("\\x{{{}}}", hex);
        at_ = end + (braces ? 1 : 0);
    }

    // \s \S \d \p{..} \P{..}
    void escaped_class(char c, bool in_class) {
        if (c == 's' || c == 'S') {
            const auto is_member = [c](char32_t code_point) {
                return is_white_space(code_point) == (c == 's');
            };
            const std::string members = ascii_     ? ascii_members(is_member)
                                        : c == 's' ? ranges_text(white_space())
                                                   : no_white_space_text();
            out_ += in_class ? members : fmt::format("[{}]", members);
            at_ += 2;
            return;
        }
        if (caseless()) {
            refuse(fmt::format("\\{} in a caseless group", c));
        }
        if (c == 'd') {
            const std::string members = category_text("Nd", ascii_);
            out_ += in_class ? members : fmt::format("[{}]", members);
            at_ += 2;
            return;
        }
        if ((c != 'p' && c != 'P') || peek(2) != '{') {
            refuse(fmt::format("the escape \\{}", c));
        }
        const std::size_t close = pattern_.find('}', at_);
        const std::string_view name =
            close == std::string_view::npos ? "" : pattern_.substr(at_ + 3, close - at_ - 3);
        if (std::find(kCategories.begin(), kCategories.end(), name) == kCategories.end()) {
            refuse(
                fmt::format("the property {} (general categories such as L, Lu and N are "
                            "supported)",
                            quote(name)));
        }
        const std::string members = category_text(name, ascii_);
        if (c == 'P' && in_class) {
            refuse("\\P{..} inside a class");
        }
        if (in_class) {
            out_ += members;
        } else {
            out_ += fmt::format("[{}{}]", c == 'P' ? "^" : "", members);
        }
        at_ = close + 1;
    }

    std::string_view pattern_;
    const std::string& where_;
    bool ascii_;
    bool needs_more_than_ascii_ = false;
    std::size_t at_ = 0;
    std::string out_;
    std::vector<bool> caseless_groups_;  // for each open group
    std::string literals_;               // the neighbouring literals before at_, if caseless
};

}  // namespace

std::string translate_pattern(std::string_view pattern, const std::string& where) {
    return Translator(pattern, where, /*ascii=*/false).run();
}

std::optional<std::string> translate_for_ascii(std::string_view pattern, const std::string& where) {
    Translator translator(pattern, where, /*ascii=*/true);
    std::string translated = translator.run();
    return translator.needs_more_than_ascii() ? std::nullopt : std::optional(std::move(translated));
}

}  // namespace dflash::data
