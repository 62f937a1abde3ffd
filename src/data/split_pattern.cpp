// SPDX-License-Identifier: Apache-2.0
#define PCRE2_CODE_UNIT_WIDTH 8
#include "split_pattern.hpp"

#include "pattern_translation.hpp"
#include "utf8.hpp"

#include <dflash/core/check.hpp>
#include <dflash/core/error.hpp>
#include <dflash/core/log.hpp>
#include <dflash/core/text.hpp>

#include <algorithm>
#include <array>
#include <cstdint>
#include <fmt/format.h>
#include <limits>
#include <pcre2.h>

namespace dflash::data {
namespace {

// Patterns of tokenizers need a few hundred bytes; the rest is for backtracking into groups.
constexpr std::size_t kJitStackStart = std::size_t{32} << 10U;
constexpr std::size_t kJitStackMax = std::size_t{8} << 20U;

std::string pcre2_message(int code) {
    std::array<PCRE2_UCHAR, 256> buffer{};
    pcre2_get_error_message(code, buffer.data(), buffer.size());
    return {buffer.begin(), std::find(buffer.begin(), buffer.end(), PCRE2_UCHAR{0})};
}

// PCRE2 counts in unsigned code units, here bytes.
PCRE2_SPTR units(std::string_view text) {
    return reinterpret_cast<PCRE2_SPTR>(text.data());
}

}  // namespace

struct MatchSpace::Blocks {
    pcre2_match_data* data = pcre2_match_data_create(/*ovecsize=*/1, nullptr);
    pcre2_match_context* context = pcre2_match_context_create(nullptr);
    pcre2_jit_stack* stack = pcre2_jit_stack_create(kJitStackStart, kJitStackMax, nullptr);

    Blocks() {
        DFLASH_CHECK(data != nullptr && context != nullptr, "PCRE2 has no memory for matching");
        // Without its own stack the JIT code takes 32 KiB of the thread's.
        if (stack != nullptr) {
            pcre2_jit_stack_assign(context, nullptr, stack);
        }
        // The limit counts steps of one match, which for a run of spaces is the run's length.
        pcre2_set_match_limit(context, std::numeric_limits<std::uint32_t>::max());
    }

    Blocks(const Blocks&) = delete;  // one owner of PCRE2's blocks
    Blocks& operator=(const Blocks&) = delete;

    ~Blocks() {
        pcre2_match_data_free(data);
        pcre2_match_context_free(context);
        pcre2_jit_stack_free(stack);
    }
};

MatchSpace::MatchSpace() : blocks_(std::make_unique<Blocks>()) {}

MatchSpace::~MatchSpace() = default;

struct SplitPattern::Code {
    pcre2_code* code = nullptr;
    bool has_jit = false;

    Code(std::string_view pattern, std::uint32_t options, const std::string& where) {
        pcre2_compile_context* context = pcre2_compile_context_create(nullptr);
        DFLASH_CHECK(context != nullptr, "PCRE2 has no memory for compiling");
        pcre2_set_newline(context, PCRE2_NEWLINE_LF);  // what . leaves out in Oniguruma
        int fault = 0;
        std::size_t fault_at = 0;
        code = pcre2_compile(units(pattern), pattern.size(), options, &fault, &fault_at, context);
        pcre2_compile_context_free(context);
        if (code == nullptr) {
            throw Error(ErrorKind::Config,
                        {.what = fmt::format("pre_tokenizer: the split pattern {} does not compile",
                                             quote(pattern, 400)),
                         .where = where,
                         .cause = fmt::format("{} at byte {}", pcre2_message(fault), fault_at),
                         .hint = ""});
        }
        // Without executable memory PCRE2 interprets the pattern: the same pieces, more slowly.
        has_jit = pcre2_jit_compile(code, PCRE2_JIT_COMPLETE | PCRE2_JIT_PARTIAL_HARD) == 0;
        if (!has_jit) {
            log_warning("{}: no JIT for the split pattern; tokenising will be slower", where);
        }
    }

    Code(const Code&) = delete;  // one owner of PCRE2's block
    Code& operator=(const Code&) = delete;

    ~Code() { pcre2_code_free(code); }
};

SplitPattern::SplitPattern(std::string_view pattern, const std::string& where, bool ascii_code)
    : SplitPattern(std::make_unique<const Code>(
          translate_pattern(pattern, where), std::uint32_t{PCRE2_UTF | PCRE2_UCP}, where)) {
    const auto for_ascii =
        ascii_code ? translate_for_ascii(pattern, where) : std::optional<std::string>();
    if (for_ascii) {
        ascii_code_ = std::make_unique<const Code>(*for_ascii, std::uint32_t{0}, where);
    }
}

SplitPattern SplitPattern::from_literal(std::string_view text, const std::string& where) {
    return SplitPattern(
        std::make_unique<const Code>(text, std::uint32_t{PCRE2_UTF | PCRE2_LITERAL}, where));
}

SplitPattern::SplitPattern(std::unique_ptr<const Code> code) : code_(std::move(code)) {}

SplitPattern::SplitPattern(SplitPattern&&) noexcept = default;
SplitPattern& SplitPattern::operator=(SplitPattern&&) noexcept = default;
SplitPattern::~SplitPattern() = default;

// In a run of ASCII its own code is tried first. A hard partial match says that the code looked at
// what lies behind the run, where a character outside ASCII may be a letter or white space: then
// the whole text is looked at, by the code for all characters.
int SplitPattern::match(std::string_view text,
                        std::size_t start,
                        std::size_t ascii_end,
                        const MatchSpace& space) const {
    const MatchSpace::Blocks& blocks = *space.blocks_;
    const auto run = [&](const Code& code, std::size_t size, std::uint32_t options) {
        // The caller has checked the text. PCRE2 would check all that follows at every match.
        return code.has_jit
                   ? pcre2_jit_match(
                         code.code, units(text), size, start, options, blocks.data, blocks.context)
                   : pcre2_match(code.code,
                                 units(text),
                                 size,
                                 start,
                                 options | PCRE2_NO_UTF_CHECK,
                                 blocks.data,
                                 blocks.context);
    };
    if (ascii_code_ && ascii_end > start) {
        const bool is_end = ascii_end == text.size();
        const int found = run(*ascii_code_, ascii_end, is_end ? 0 : PCRE2_PARTIAL_HARD);
        // Without a match the rest of the run was looked at, to its end.
        if (found >= 0 || is_end) {
            return found;
        }
    }
    return run(*code_, text.size(), 0);
}

void SplitPattern::split(std::string_view text,
                         MatchSpace& space,
                         std::vector<std::string_view>& pieces) const {
    const MatchSpace::Blocks& blocks = *space.blocks_;
    const PCRE2_SIZE* const ends = pcre2_get_ovector_pointer(blocks.data);
    std::size_t emitted = 0;  // bytes of the text that are in pieces
    std::size_t start = 0;
    std::size_t ascii_end = 0;  // of the run of ASCII that `start` lies in; none: at most `start`
    while (start < text.size()) {
        if (start >= ascii_end) {
            ascii_end = find_ascii_end(text, start);
        }
        const int found = match(text, start, ascii_end, space);
        if (found == PCRE2_ERROR_NOMATCH) {
            break;
        }
        // A pattern with capturing groups has more to report (0) than the one pair of offsets kept.
        if (found < 0) {
            throw Error(ErrorKind::Data,
                        {.what = fmt::format(
                             "splitting a text of {} bytes failed at byte {}", text.size(), start),
                         .where = "",
                         .cause = pcre2_message(found),
                         .hint = ""});
        }
        // After an empty match the search goes on behind the next character, as Oniguruma's does.
        const std::size_t begin = ends[0];
        const std::size_t end = ends[1];
        if (begin > emitted) {
            pieces.push_back(text.substr(emitted, begin - emitted));
        }
        if (end > begin) {
            pieces.push_back(text.substr(begin, end - begin));
        }
        emitted = end;
        start = end > begin ? end : end + (end < text.size() ? step_utf8(text, end).length : 1);
    }
    if (emitted < text.size()) {
        pieces.push_back(text.substr(emitted));
    }
}

}  // namespace dflash::data
