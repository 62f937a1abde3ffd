// SPDX-License-Identifier: Apache-2.0
#include <dflash/core/text.hpp>
#include <dflash/train/acceptance_texts.hpp>

#include <algorithm>
#include <fmt/format.h>
#include <utility>

namespace dflash::train {
namespace {

JudgedText joined(const std::vector<TokenId>& prompt, std::span<const TokenId> answer) {
    JudgedText text{.tokens = prompt, .begin = std::ssize(prompt)};
    text.tokens.insert(text.tokens.end(), answer.begin(), answer.end());
    return text;
}

/// In quotes, on one line: white space at its ends is part of it.
std::string visible(const std::string& text) {
    std::string result = "\"";
    for (const char c : text) {
        if (c == '\n') {
            result += "\\n";
        } else {
            result += c;
        }
    }
    return escape_controls(result) + '"';
}

void add_text(const std::string& text, std::vector<std::string>& lines) {
    for (std::size_t begin = 0; begin <= text.size();) {
        const std::size_t end = std::min(text.find('\n', begin), text.size());
        lines.push_back("  " + escape_controls(text.substr(begin, end - begin)));
        begin = end + 1;
    }
}

}  // namespace

std::vector<JudgedText> written_texts(std::span<const eval::DecodeTask> tasks,
                                      std::span<const eval::DecodedText> decoded,
                                      std::size_t most) {
    std::vector<JudgedText> texts;
    for (std::size_t i = 0; i < tasks.size() && texts.size() < most; ++i) {
        // An anchor needs a token behind it.
        if (decoded[i].emitted.size() >= 2) {
            texts.push_back(joined(tasks[i].prompt, decoded[i].emitted));
            texts.back().decoded = &decoded[i];
        }
    }
    return texts;
}

std::vector<JudgedText> answered_texts(std::span<const EvalPrompt> prompts,
                                       std::size_t longest,
                                       std::size_t most) {
    std::vector<JudgedText> texts;
    for (std::size_t i = 0; i < prompts.size() && texts.size() < most; ++i) {
        const std::span<const TokenId> answer(prompts[i].answer);
        if (answer.size() >= 2 && longest >= 2) {
            texts.push_back(
                joined(prompts[i].tokens, answer.first(std::min(answer.size(), longest))));
        }
    }
    return texts;
}

std::vector<JudgedText> cut_in_halves(const JudgedText& text) {
    constexpr std::int64_t kFewTokens = 16;
    const std::int64_t longest = std::ssize(text.tokens);
    const std::int64_t answer = longest - text.begin;
    std::vector<JudgedText> cuts;
    for (std::int64_t length = longest; length >= std::min(longest, kFewTokens); length /= 2) {
        const std::span<const TokenId> tokens(text.tokens);
        cuts.push_back(joined({}, tokens.first(static_cast<std::size_t>(length))));
        // At least one token is a prompt.
        cuts.back().begin = std::max<std::int64_t>(1, length - answer);
    }
    return cuts;
}

ShownText show_text(const data::Tokenizer& tokenizer,
                    const EvalPrompt& prompt,
                    const eval::DecodedText& plain,
                    const eval::DecodedText& drafted) {
    ShownText shown;
    shown.place = prompt.place;
    shown.prompt = tokenizer.decode(prompt.tokens);
    shown.plain = tokenizer.decode(plain.emitted);
    shown.plain_passes = std::ssize(plain.rounds);
    shown.first = tokenizer.decode(std::span(drafted.emitted).first(1));
    for (const eval::Round& round : drafted.rounds) {
        const std::span<const TokenId> drafts(round.drafted);
        const auto kept = static_cast<std::size_t>(round.accepted);
        shown.rounds.push_back({.kept = tokenizer.decode(drafts.first(kept)),
                                .refused = tokenizer.decode(drafts.subspan(kept)),
                                .own = tokenizer.decode(std::span(&round.bonus, 1)),
                                .num_kept = round.accepted});
    }
    return shown;
}

std::vector<std::string> to_lines(const ShownText& shown) {
    std::vector<std::string> lines;
    lines.push_back(fmt::format("prompt    {}", escape_controls(shown.place)));
    add_text(shown.prompt, lines);
    lines.push_back(fmt::format("plain     a token a pass, {} passes:", shown.plain_passes));
    add_text(shown.plain, lines);
    lines.push_back(fmt::format(
        "drafted   {} passes, a line each: [kept drafts] own token of the target, and what was "
        "refused",
        shown.rounds.size()));
    lines.push_back(fmt::format("   1  {}", visible(shown.first)));
    for (const ShownText::Piece& round : shown.rounds) {
        const std::string kept = round.num_kept > 0 ? "[" + visible(round.kept) + "] " : "";
        lines.push_back(
            fmt::format("  {:>2}  {}{}{}",
                        round.num_kept + 1,
                        kept,
                        visible(round.own),
                        round.refused.empty() ? "" : "   refused " + visible(round.refused)));
    }
    return lines;
}

}  // namespace dflash::train
