// SPDX-License-Identifier: Apache-2.0
#include <dflash/core/text.hpp>
#include <dflash/data/dataset.hpp>

#include <algorithm>
#include <fmt/format.h>

namespace dflash::data {

namespace {

double percent(std::int64_t part, std::int64_t whole) {
    return whole == 0 ? 0 : 100 * static_cast<double>(part) / static_cast<double>(whole);
}

// "1 row", "1,234 rows"
std::string counted(std::int64_t count, std::string_view noun) {
    return fmt::format("{} {}{}", format_count(count), noun, count == 1 ? "" : "s");
}

// Foreign text inside a code span must not end it.
std::string code(std::string text) {
    std::replace(text.begin(), text.end(), '`', '\'');
    return "`" + text + "`";
}

// The answer in one sentence, before any figure.
std::string verdict(const DataReport& report) {
    const std::int64_t refused = report.num_refused();
    if (refused == 0 && report.cut == 0 && report.vanished_bytes == 0 &&
        report.without_anchor == 0 && report.left_out == LeftOut{}) {
        return fmt::format("**Yes.** {} read, all of it is used as it stands.",
                           counted(report.lines, "row"));
    }
    if (refused == 0) {
        return fmt::format(
            "**Yes, with remarks.** {} read, none refused; see below what of them "
            "is not trained on.",
            counted(report.lines, "row"));
    }
    return fmt::format("**Not all of it.** {} of {} ({:.2f} %) cannot be used and are left out.",
                       format_count(refused),
                       counted(report.lines, "row"),
                       percent(refused, report.lines));
}

void append_figures(std::string& out, const DataReport& report) {
    const auto line = [&](std::string_view name, const std::string& value) {
        out += fmt::format("| {} | {} |\n", name, value);
    };
    out += "| what | how much |\n| --- | --- |\n";
    line("rows (lines that are not blank)", format_count(report.lines));
    line("usable rows", format_count(report.usable));
    line("refused rows", format_count(report.num_refused()));
    line("blank lines, skipped", format_count(report.blank));
    line("tokens of usable rows", format_count(report.tokens));
    line("of them trained (what the model itself would write)",
         fmt::format("{} ({:.1f} %)",
                     format_count(report.trainable_tokens),
                     percent(report.trainable_tokens, report.tokens)));
    line("tokens per usable row",
         fmt::format("{} on average, {} in the longest",
                     format_count(report.usable == 0 ? 0 : report.tokens / report.usable),
                     format_count(report.longest)));
    line("blocks drawn in an epoch", format_count(report.anchors));
}

void append_refused(std::string& out, const DataReport& report) {
    if (report.refused.empty()) {
        return;
    }
    out +=
        "\n## Rows that are left out\n\nBy reason, with the first example of each "
        "(path:line:column).\n\n";
    for (const auto& [kind, count] : report.refused) {
        const auto example = report.first_example.find(kind);
        out += fmt::format("* **{}**: {}. {}\n",
                           kind,
                           counted(count, "row"),
                           example == report.first_example.end() ? "" : code(example->second));
    }
}

// What of usable rows does not reach the drafter.
void append_remarks(std::string& out, const DataReport& report) {
    std::string remarks;
    const auto remark = [&](std::int64_t count, const std::string& text) {
        if (count > 0) {
            remarks += "* " + text + "\n";
        }
    };
    remark(report.cut,
           fmt::format("{} longer than {} tokens (data.max_length) cut at the end: {} lost.",
                       counted(report.cut, "row"),
                       format_count(report.max_length),
                       counted(report.cut_tokens, "token")));
    remark(report.without_anchor,
           fmt::format("{} usable, but without two trained tokens side by side: nothing is learned "
                       "from them.",
                       counted(report.without_anchor, "row")));
    remark(report.left_out.reasoning,
           fmt::format("{} with reasoning that is not in the text: the chat format leaves it out, "
                       "as a server does in later turns. To train on it, cut the conversation into "
                       "one row a turn.",
                       counted(report.left_out.reasoning, "message")));
    remark(report.left_out.text,
           fmt::format("{} with text before or between think blocks, which the chat format leaves "
                       "out.",
                       counted(report.left_out.text, "message")));
    remark(report.left_out.tools,
           fmt::format("{} with tool definitions, which the chat format has no place for.",
                       counted(report.left_out.tools, "row")));
    remark(report.vanished_bytes,
           fmt::format("{} without a token in the target's vocabulary: they are missing from the "
                       "tokens.",
                       counted(report.vanished_bytes, "byte")));
    if (!remarks.empty()) {
        out += "\n## Remarks\n\n" + remarks;
    }
}

}  // namespace

std::int64_t DataReport::num_refused() const {
    std::int64_t sum = 0;
    for (const auto& [kind, count] : refused) {
        sum += count;
    }
    return sum;
}

std::string DataReport::to_markdown() const {
    std::string out = "# Is my data all right?\n\n" + verdict(*this) + "\n\n";
    for (const std::string& file : files) {
        out += fmt::format("* {}\n", code(file));
    }
    out += fmt::format("\nRendered in the chat format {}.\n\n", chat_format);
    append_figures(out, *this);
    append_refused(out, *this);
    append_remarks(out, *this);
    return out;
}

}  // namespace dflash::data
