// SPDX-License-Identifier: Apache-2.0
#include "utf8.hpp"

#include <dflash/core/text.hpp>
#include <dflash/data/sample_view.hpp>

#include <algorithm>
#include <fmt/format.h>
#include <span>

namespace dflash::data {

namespace {

constexpr std::string_view kTrained = "\x1b[32m";  // green
constexpr std::string_view kContext = "\x1b[90m";  // grey
constexpr std::string_view kReset = "\x1b[0m";

// Both ends of a long text, with what lies between counted.
std::string shorten(const std::string& text, std::size_t max_bytes) {
    if (text.size() <= max_bytes) {
        return text;
    }
    const std::size_t begin = character_begin(text, max_bytes / 2);
    const std::size_t end = character_end(text, text.size() - max_bytes / 2);
    return fmt::format("{} [... {} bytes ...] {}",
                       text.substr(0, begin),
                       format_count(static_cast<std::int64_t>(end - begin)),
                       text.substr(end));
}

}  // namespace

SampleView view_sample(const Dataset& dataset, const Tokenizer& tokenizer, SampleId id) {
    const Sample sample = dataset.encode(id);
    SampleView view;
    view.place = dataset.place_of(id);
    view.tokens = std::ssize(sample.tokens);
    view.trained_tokens = std::count(sample.trainable.begin(), sample.trainable.end(), 1);
    const std::span<const TokenId> tokens(sample.tokens);
    for (std::size_t begin = 0; begin < tokens.size();) {
        std::size_t end = begin;
        while (end < tokens.size() && sample.trainable[end] == sample.trainable[begin]) {
            ++end;
        }
        view.runs.push_back({.text = tokenizer.decode(tokens.subspan(begin, end - begin)),
                             .tokens = static_cast<std::int64_t>(end - begin),
                             .trained = sample.trainable[begin] != 0});
        begin = end;
    }
    return view;
}

std::vector<std::string> to_lines(const SampleView& view, bool colours, std::size_t max_bytes) {
    std::vector<std::string> lines = {fmt::format("sample    {}: {} tokens, {} trained ({})",
                                                  escape_controls(view.place),
                                                  format_count(view.tokens),
                                                  format_count(view.trained_tokens),
                                                  colours ? "green" : "between >>> and <<<")};
    std::string line;
    for (const SampleRun& run : view.runs) {
        const std::string_view colour = run.trained ? kTrained : kContext;
        const std::string text = shorten(run.text, max_bytes);
        line += colours ? colour : run.trained ? ">>>" : "";
        for (std::size_t begin = 0;;) {
            const std::size_t end = std::min(text.find('\n', begin), text.size());
            line += escape_controls(std::string_view(text).substr(begin, end - begin));
            if (end == text.size()) {
                break;
            }
            // Each line sets its colours back: what follows may be somebody else's.
            lines.push_back("  " + std::exchange(line, "") + std::string(colours ? kReset : ""));
            line += colours ? colour : "";
            begin = end + 1;
        }
        line += colours ? kReset : run.trained ? "<<<" : "";
    }
    if (!line.empty()) {
        lines.push_back("  " + line);
    }
    return lines;
}

io::Json to_json(const SampleView& view) {
    std::vector<io::Json> runs;
    for (const SampleRun& run : view.runs) {
        runs.push_back(io::Json::object({{"text", io::Json::string(run.text)},
                                         {"tokens", io::Json::integer(run.tokens)},
                                         {"trained", io::Json::boolean(run.trained)}}));
    }
    return io::Json::object({{"place", io::Json::string(view.place)},
                             {"tokens", io::Json::integer(view.tokens)},
                             {"trained_tokens", io::Json::integer(view.trained_tokens)},
                             {"runs", io::Json::array(std::move(runs))}});
}

}  // namespace dflash::data
