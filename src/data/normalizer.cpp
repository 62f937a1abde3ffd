// SPDX-License-Identifier: Apache-2.0
#include "normalizer.hpp"

#include "unicode_tables.hpp"
#include "utf8.hpp"

#include <dflash/core/check.hpp>

#include <algorithm>
#include <array>
#include <cstdint>
#include <utf8proc.h>

namespace dflash::data {
namespace {

// STABLE keeps excluded compositions apart; COMPOSE asks for canonical decomposition first.
constexpr auto kNfc = static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE);

// No character decomposes canonically into more than four.
constexpr std::size_t kMaxDecomposition = 4;

// Planes above the second hold no character that NFC changes or composes.
constexpr char32_t kTableEnd = 0x30000;

constexpr std::uint8_t kStartsSection = 1;  // nothing composes or moves across its left edge
constexpr std::uint8_t kStable = 2;         // alone, it is its own NFC
constexpr std::uint8_t kInert = 4;          // nothing composes with it from the right either

// Full canonical decomposition of one character; Hangul included.
std::size_t decompose(char32_t code_point, std::array<utf8proc_int32_t, kMaxDecomposition>& out) {
    int boundary = 0;
    const utf8proc_ssize_t length =
        utf8proc_decompose_char(static_cast<utf8proc_int32_t>(code_point),
                                out.data(),
                                static_cast<utf8proc_ssize_t>(out.size()),
                                kNfc,
                                &boundary);
    DFLASH_CHECK(length >= 0 && length <= static_cast<utf8proc_ssize_t>(out.size()),
                 "utf8proc_decompose_char gave {} for U+{:04X}",
                 length,
                 static_cast<std::uint32_t>(code_point));
    return static_cast<std::size_t>(length);
}

int combining_class(utf8proc_int32_t code_point) {
    return utf8proc_get_property(code_point)->combining_class;
}

// Properties of all characters below kTableEnd, from utf8proc's data and the inert list.
std::vector<std::uint8_t> make_table() {
    std::vector<std::uint8_t> table(kTableEnd, 0);
    std::vector<bool> is_second(kTableEnd, false);
    std::array<utf8proc_int32_t, kMaxDecomposition> parts{};
    for (char32_t c = 0; c < kTableEnd; ++c) {
        const std::size_t length = decompose(c, parts);
        for (std::size_t i = 1; i < length; ++i) {
            is_second[static_cast<std::size_t>(parts[i])] = true;
        }
        const utf8proc_ssize_t composed =
            utf8proc_normalize_utf32(parts.data(), static_cast<utf8proc_ssize_t>(length), kNfc);
        if (composed == 1 && parts[0] == static_cast<utf8proc_int32_t>(c)) {
            table[c] = kStable;
        }
    }
    for (char32_t c = 0; c < kTableEnd; ++c) {
        decompose(c, parts);
        if (combining_class(parts[0]) == 0 && !is_second[static_cast<std::size_t>(parts[0])]) {
            table[c] |= kStartsSection;
        }
        if (contains(nfc_inert(), c)) {
            table[c] = kStartsSection | kStable | kInert;
        }
    }
    return table;
}

std::uint8_t properties(char32_t code_point) {
    static const std::vector<std::uint8_t> table = make_table();
    return code_point < kTableEnd ? table[code_point]
                                  : static_cast<std::uint8_t>(kStartsSection | kStable);
}

std::string normalize_section(std::string_view section) {
    std::vector<utf8proc_int32_t> points;
    std::array<utf8proc_int32_t, kMaxDecomposition> parts{};
    for (std::size_t at = 0; at < section.size();) {
        const Utf8Step step = step_utf8(section, at);
        const std::size_t length = decompose(step.code_point, parts);
        points.insert(
            points.end(), parts.begin(), parts.begin() + static_cast<std::ptrdiff_t>(length));
        at += step.length;
    }
    // Canonical order. utf8proc's own ordering takes quadratic time on long runs of marks.
    for (auto run = points.begin(); run != points.end();) {
        if (combining_class(*run) == 0) {
            ++run;
            continue;
        }
        const auto end = std::find_if(
            run, points.end(), [](utf8proc_int32_t c) { return combining_class(c) == 0; });
        std::stable_sort(run, end, [](utf8proc_int32_t a, utf8proc_int32_t b) {
            return combining_class(a) < combining_class(b);
        });
        run = end;
    }
    const utf8proc_ssize_t length =
        utf8proc_normalize_utf32(points.data(), static_cast<utf8proc_ssize_t>(points.size()), kNfc);
    DFLASH_CHECK(length >= 0, "utf8proc_normalize_utf32 gave {}", length);
    std::string result;
    for (utf8proc_ssize_t i = 0; i < length; ++i) {
        append_utf8(result, static_cast<char32_t>(points[static_cast<std::size_t>(i)]));
    }
    return result;
}

// Collects the result: unchanged text is copied in as few parts as there are changes.
class Builder {
  public:
    explicit Builder(std::string_view text) : text_(text) {}

    void add_section(std::size_t begin, std::size_t end) {
        const Utf8Step first = step_utf8(text_, begin);
        if ((properties(first.code_point) & kInert) != 0) {
            begin += first.length;
        }
        if (begin == end) {
            return;
        }
        const std::string_view section = text_.substr(begin, end - begin);
        const std::string normalized = normalize_section(section);
        if (normalized == section) {
            return;
        }
        result_.text.append(text_, copied_, begin - copied_);
        const auto result_begin = narrow<std::int64_t>(result_.text.size());
        result_.text += normalized;
        result_.changes.push_back(
            {.given = {narrow<std::int64_t>(begin), narrow<std::int64_t>(end)},
             .result = {result_begin, narrow<std::int64_t>(result_.text.size())}});
        copied_ = end;
    }

    std::optional<NormalizedText> finish() {
        if (result_.changes.empty()) {
            return std::nullopt;
        }
        result_.text.append(text_, copied_);
        return std::move(result_);
    }

  private:
    std::string_view text_;
    std::size_t copied_ = 0;  // bytes of text_ that are in result_.text
    NormalizedText result_;
};

}  // namespace

ByteRange NormalizedText::to_given(ByteRange range) const {
    // Offset of an unchanged place after the changes that end at or before it, or the edge of the
    // section it lies in.
    const auto map = [this](std::int64_t at, bool is_end) {
        const auto after =
            std::partition_point(changes.begin(), changes.end(), [&](const NfcChange& change) {
                return is_end ? change.result.end < at : change.result.end <= at;
            });
        if (after != changes.end() &&
            (is_end ? after->result.begin < at : after->result.begin <= at)) {
            return is_end ? after->given.end : after->given.begin;
        }
        if (after == changes.begin()) {
            return at;
        }
        const NfcChange& before = *std::prev(after);
        return before.given.end + (at - before.result.end);
    };
    return {map(range.begin, /*is_end=*/false), map(range.end, /*is_end=*/true)};
}

std::optional<NormalizedText> normalize_nfc(std::string_view text) {
    Builder builder(text);
    std::size_t section = 0;  // begin of the current section
    bool is_plain = true;     // it is one stable character so far
    for (std::size_t at = 0; at < text.size();) {
        const Utf8Step step = step_utf8(text, at);
        const std::uint8_t found =
            step.code_point < 0x80 ? kStartsSection | kStable : properties(step.code_point);
        if ((found & kStartsSection) != 0) {
            if (!is_plain) {
                builder.add_section(section, at);
            }
            section = at;
            is_plain = (found & kStable) != 0;
        } else {
            is_plain = false;
        }
        at += step.length;
    }
    if (!is_plain) {
        builder.add_section(section, text.size());
    }
    return builder.finish();
}

}  // namespace dflash::data
