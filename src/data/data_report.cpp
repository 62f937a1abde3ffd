// SPDX-License-Identifier: Apache-2.0
#include "report_text.hpp"

#include <dflash/core/text.hpp>
#include <dflash/data/data_report.hpp>

#include <algorithm>
#include <fmt/format.h>
#include <fmt/ranges.h>

namespace dflash::data {

namespace {

// Foreign text inside a code span must not end it.
std::string code(std::string text) {
    std::replace(text.begin(), text.end(), '`', '\'');
    return "`" + text + "`";
}

// The answer in one sentence, before any figure.
std::string verdict(const DataReport& report) {
    const std::int64_t to_answer = report.num_to_answer();
    const std::int64_t refused = report.num_refused() - to_answer;
    if (report.usable + report.pending + to_answer == 0) {
        return fmt::format("No. None of {} can be used.", counted(report.lines, "row"));
    }
    if (refused > 0) {
        return fmt::format("Not all of it. {} of {} ({:.2f} %) cannot be used and are left out.",
                           format_count(refused),
                           counted(report.lines, "row"),
                           percent(refused, report.lines));
    }
    if (to_answer > 0) {
        return fmt::format(
            "Yes, with answers of the target. {} of {} have none: in a run the "
            "target answers them.",
            format_count(to_answer),
            counted(report.lines, "row"));
    }
    if (report.warnings().empty() && report.cut.rows == 0 && report.without_anchor.rows == 0) {
        return fmt::format("Yes. {} read, all of it is used as it stands.",
                           counted(report.lines, "row"));
    }
    return fmt::format(
        "Yes, with remarks. {} read, none refused; see below what of them is not trained on.",
        counted(report.lines, "row"));
}

struct Figure {
    std::string name;
    std::string value;
};

std::string weight_note(const FileCount& file) {
    return file.weight == 1 ? "" : fmt::format(", weight {}", file.weight);
}

double per_row(double value, const DataReport& report) {
    return report.usable == 0 ? 0 : value / static_cast<double>(report.usable);
}

std::vector<Figure> figures_of(const DataReport& report) {
    std::vector<Figure> figures = {
        {"rows", format_count(report.lines)},
        {"usable rows", format_count(report.usable)},
        {"refused rows", format_count(report.num_refused())},
        {"blank lines, skipped", format_count(report.blank)},
        {"tokens of usable rows", format_count(report.tokens)},
        {"of them trained (what the model itself would write)",
         fmt::format("{} ({:.1f} %)",
                     format_count(report.trainable_tokens),
                     percent(report.trainable_tokens, report.tokens))},
        {"tokens per usable row",
         fmt::format("{} on average; half have at most {}, 90 % at most {}, 99 % at most {}; {} in "
                     "the longest",
                     format_count(report.usable == 0 ? 0 : report.tokens / report.usable),
                     format_count(report.length_p50),
                     format_count(report.length_p90),
                     format_count(report.length_p99),
                     format_count(report.longest))},
        {"blocks drawn in an epoch",
         fmt::format("{} ({:.1f} per row)",
                     format_count(report.anchors),
                     per_row(static_cast<double>(report.anchors), report))},
        {"trained tokens that these predict",
         fmt::format("{:.1f} %",
                     percent(report.covered, static_cast<double>(report.trainable_tokens)))},
    };
    if (report.answered + report.pending > 0) {
        figures.push_back({"answered by the target", format_count(report.answered)});
        figures.push_back({"still to be answered", format_count(report.pending)});
    }
    for (const auto& [reason, count] : report.dropped_answers) {
        figures.push_back({"answers dropped: " + reason, format_count(count)});
    }
    if (report.cut.rows > 0 || report.dropped_trainable > 0) {
        figures.push_back(
            {"trained tokens lost behind data.max_length",
             fmt::format("{} ({:.2f} %)",
                         format_count(report.cut_trainable + report.dropped_trainable),
                         100 * report.lost_fraction())});
    }
    return figures;
}

// "up to 64", "65 - 128", "more than 131,072"
std::string class_name(std::size_t place) {
    const std::int64_t most = DataReport::kShortest << place;
    if (place == 0) {
        return fmt::format("up to {}", format_count(most));
    }
    if (place + 1 == DataReport::kNumLengths) {
        return fmt::format("more than {}", format_count(most / 2));
    }
    return fmt::format("{} - {}", format_count(most / 2 + 1), format_count(most));
}

// The classes between the shortest and the longest row.
std::pair<std::size_t, std::size_t> used_classes(const DataReport& report) {
    const auto is_used = [](std::int64_t rows) { return rows > 0; };
    const auto first = std::find_if(report.lengths.begin(), report.lengths.end(), is_used);
    const auto last = std::find_if(report.lengths.rbegin(), report.lengths.rend(), is_used);
    if (first == report.lengths.end()) {
        return {0, 0};
    }
    return {static_cast<std::size_t>(first - report.lengths.begin()),
            static_cast<std::size_t>(report.lengths.rend() - last)};
}

void append_groups(std::string& out, const DataReport& report) {
    if (!report.refused.empty()) {
        out +=
            "\n## Rows that are left out\n\nBy reason, with the first example of each "
            "(path:line:column).\n\n";
        for (const auto& [kind, group] : report.refused) {
            out += fmt::format(
                "* **{}**: {}. {}\n", kind, counted(group.rows, "row"), code(group.message));
            if (group.places.size() > 1) {
                out += fmt::format("  Also {}.\n",
                                   fmt::join(group.places.begin() + 1, group.places.end(), ", "));
            }
        }
    }
    std::string remarks;
    if (report.cut.rows > 0) {
        remarks += fmt::format(
            "* {} longer than {} tokens (data.max_length) cut at the end: {} lost, {} of them "
            "trained ones ({}).\n",
            counted(report.cut.rows, "row"),
            format_count(report.max_length),
            counted(report.cut_tokens, "token"),
            format_count(report.cut_trainable),
            fmt::join(report.cut.places, ", "));
    }
    if (report.without_anchor.rows > 0) {
        remarks += fmt::format(
            "* {} usable, but without two trained tokens side by side: nothing is learned from "
            "them ({}).\n",
            counted(report.without_anchor.rows, "row"),
            fmt::join(report.without_anchor.places, ", "));
    }
    if (report.duplicates.rows > 0) {
        remarks += fmt::format("* {} that an earlier row equals ({}).\n",
                               counted(report.duplicates.rows, "row"),
                               fmt::join(report.duplicates.places, ", "));
    }
    if (!report.ignored.empty()) {
        std::vector<std::string> names;
        for (const auto& [name, rows] : report.ignored) {
            names.push_back(fmt::format("{} ({})", code(name), counted(rows, "row")));
        }
        remarks += fmt::format("* Fields that nobody reads: {}.\n", fmt::join(names, ", "));
    }
    if (!remarks.empty()) {
        out += "\n## Remarks\n\n" + remarks;
    }
}

void append_sources(std::vector<std::string>& out, const DataReport& report) {
    for (const FileCount& file : report.files) {
        out.push_back(fmt::format("file      {}: {} of {} usable{}",
                                  escape_controls(file.path),
                                  format_count(file.usable),
                                  counted(file.rows, "row"),
                                  weight_note(file)));
    }
    out.push_back(fmt::format("format    {}", report.chat_format));
    for (const auto& [name, count] : report.shapes) {
        out.push_back(fmt::format("shape     {}: {}, {} usable",
                                  name,
                                  counted(count.rows, "row"),
                                  format_count(count.usable)));
    }
}

void append_histogram(std::vector<std::string>& out, const DataReport& report, int columns) {
    const auto [begin, end] = used_classes(report);
    const std::int64_t most =
        std::max<std::int64_t>(1, *std::max_element(report.lengths.begin(), report.lengths.end()));
    const int room = std::clamp(columns - 38, 10, 60);
    for (std::size_t i = begin; i < end; ++i) {
        // Rounded up: no bar only where there is no row.
        const auto width = static_cast<std::size_t>((report.lengths[i] * room + most - 1) / most);
        out.push_back(fmt::format("{:>18} tokens {:<{}} {}",
                                  class_name(i),
                                  std::string(width, '#'),
                                  room,
                                  format_count(report.lengths[i])));
    }
}

void append_refused_lines(std::vector<std::string>& out, const DataReport& report) {
    if (!report.refused.empty()) {
        out.emplace_back();
    }
    for (const auto& [kind, group] : report.refused) {
        out.push_back(fmt::format("refused   {}: {}", kind, counted(group.rows, "row")));
        out.push_back("          " + escape_controls(group.message));
        if (group.places.size() > 1) {
            out.push_back(fmt::format(
                "          also {}{}",
                escape_controls(fmt::format(
                    "{}", fmt::join(group.places.begin() + 1, group.places.end(), ", "))),
                group.rows > std::ssize(group.places) ? ", ..." : ""));
        }
    }
}

io::Json json_of(const RowGroup& group) {
    std::vector<io::Json> places;
    for (const std::string& place : group.places) {
        places.push_back(io::Json::string(place));
    }
    io::Json json = io::Json::object({{"rows", io::Json::integer(group.rows)},
                                      {"examples", io::Json::array(std::move(places))}});
    if (!group.message.empty()) {
        json.set("first", io::Json::string(group.message));
    }
    return json;
}

io::Json json_of_lengths(const DataReport& report) {
    std::vector<io::Json> classes;
    for (std::size_t i = 0; i < report.lengths.size(); ++i) {
        const bool is_last = i + 1 == report.lengths.size();
        classes.push_back(io::Json::object(
            {{"at_most", is_last ? io::Json() : io::Json::integer(DataReport::kShortest << i)},
             {"rows", io::Json::integer(report.lengths[i])}}));
    }
    return io::Json::object({{"p50", io::Json::integer(report.length_p50)},
                             {"p90", io::Json::integer(report.length_p90)},
                             {"p99", io::Json::integer(report.length_p99)},
                             {"longest", io::Json::integer(report.longest)},
                             {"classes", io::Json::array(std::move(classes))}});
}

io::Json json_of_maps(const DataReport& report, io::Json json) {
    io::Json shapes = io::Json::object();
    for (const auto& [name, count] : report.shapes) {
        shapes.set(name,
                   io::Json::object({{"rows", io::Json::integer(count.rows)},
                                     {"usable", io::Json::integer(count.usable)}}));
    }
    io::Json dropped = io::Json::object();
    for (const auto& [reason, count] : report.dropped_answers) {
        dropped.set(reason, io::Json::integer(count));
    }
    json.set("dropped_answers", std::move(dropped));
    io::Json refused = io::Json::object();
    for (const auto& [kind, group] : report.refused) {
        refused.set(kind, json_of(group));
    }
    io::Json ignored = io::Json::object();
    for (const auto& [name, rows] : report.ignored) {
        ignored.set(name, io::Json::integer(rows));
    }
    std::vector<io::Json> warnings;
    for (const DataWarning& warning : report.warnings()) {
        warnings.push_back(io::Json::object({{"code", io::Json::string(warning.code)},
                                             {"what", io::Json::string(warning.what)},
                                             {"hint", io::Json::string(warning.hint)}}));
    }
    json.set("shapes", std::move(shapes));
    json.set("refused", std::move(refused));
    json.set("ignored_fields", std::move(ignored));
    json.set("warnings", io::Json::array(std::move(warnings)));
    return json;
}

}  // namespace

std::int64_t DataReport::num_refused() const {
    std::int64_t sum = 0;
    for (const auto& [kind, group] : refused) {
        sum += group.rows;
    }
    return sum;
}

std::int64_t DataReport::num_bad() const {
    return num_refused() - num_refused("too_few_trained");
}

std::int64_t DataReport::num_refused(const std::string& kind) const {
    const auto found = refused.find(kind);
    return found == refused.end() ? 0 : found->second.rows;
}

std::int64_t DataReport::num_to_answer() const {
    return target_answers ? num_refused("prompt_only") + num_refused("empty_answer") : 0;
}

std::string DataReport::to_markdown() const {
    std::string answer = verdict(*this);
    answer.insert(answer.find('.') + 1, "**");
    std::string out = "# Is my data all right?\n\n**" + answer + "\n\n";
    for (const FileCount& file : files) {
        out += fmt::format("* {}: {} of {} usable{}\n",
                           code(file.path),
                           format_count(file.usable),
                           counted(file.rows, "row"),
                           weight_note(file));
    }
    out += fmt::format("\nRendered in the chat format {}.\n", chat_format);
    if (const std::vector<DataWarning> list = warnings(); !list.empty()) {
        out += "\n## Warnings\n\n";
        for (const DataWarning& warning : list) {
            out += fmt::format("* {}. *{}.*\n", warning.what, warning.hint);
        }
    }
    out += "\n## Figures\n\n| what | how much |\n| --- | --- |\n";
    for (const Figure& figure : figures_of(*this)) {
        out += fmt::format("| {} | {} |\n", figure.name, figure.value);
    }
    out += "\n| shape of rows | rows | usable |\n| --- | --- | --- |\n";
    for (const auto& [name, count] : shapes) {
        out += fmt::format(
            "| {} | {} | {} |\n", name, format_count(count.rows), format_count(count.usable));
    }
    out += "\n| tokens of a row, before cutting | usable rows |\n| --- | --- |\n";
    const auto [begin, end] = used_classes(*this);
    for (std::size_t i = begin; i < end; ++i) {
        out += fmt::format("| {} | {} |\n", class_name(i), format_count(lengths[i]));
    }
    append_groups(out, *this);
    return out;
}

std::vector<std::string> DataReport::to_lines(int columns) const {
    std::vector<std::string> out = {"Is my data all right? " + verdict(*this), ""};
    append_sources(out, *this);
    out.emplace_back();
    for (const Figure& figure : figures_of(*this)) {
        out.push_back(fmt::format("{:<52} {}", figure.name, figure.value));
    }
    if (!ignored.empty()) {
        std::vector<std::string> names;
        for (const auto& [name, rows] : ignored) {
            names.push_back(escape_controls(name));
        }
        out.push_back(fmt::format("{:<52} {}", "fields that nobody reads", fmt::join(names, ", ")));
    }
    out.emplace_back();
    append_histogram(out, *this, columns);
    append_refused_lines(out, *this);
    const std::vector<DataWarning> list = warnings();
    if (!list.empty()) {
        out.emplace_back();
    }
    for (const DataWarning& warning : list) {
        out.push_back("warning   " + escape_controls(warning.what));
        out.push_back("          -> " + warning.hint);
    }
    return out;
}

io::Json DataReport::to_json() const {
    const auto count = [](std::int64_t value) { return io::Json::integer(value); };
    std::vector<io::Json> file_list;
    for (const FileCount& file : files) {
        file_list.push_back(io::Json::object({{"path", io::Json::string(file.path)},
                                              {"weight", io::Json::number(file.weight)},
                                              {"rows", count(file.rows)},
                                              {"usable", count(file.usable)}}));
    }
    io::Json json = io::Json::object(
        {{"verdict", io::Json::string(verdict(*this))},
         {"files", io::Json::array(std::move(file_list))},
         {"chat_format", io::Json::string(chat_format)},
         {"max_length", count(max_length)},
         {"bytes", count(bytes)},
         {"rows", count(lines)},
         {"blank_lines", count(blank)},
         {"usable", count(usable)},
         {"refused_rows", count(num_refused())},
         {"without_response", count(num_refused("prompt_only"))},
         {"answered", count(answered)},
         {"pending", count(pending)},
         {"tokens", count(tokens)},
         {"trained_tokens", count(trainable_tokens)},
         {"anchors", count(anchors)},
         {"anchor_candidates", count(anchor_candidates)},
         {"anchors_per_row", io::Json::number(per_row(static_cast<double>(anchors), *this))},
         {"coverage",
          io::Json::number(percent(covered, static_cast<double>(trainable_tokens)) / 100)},
         {"lengths", json_of_lengths(*this)},
         {"cut", json_of(cut)},
         {"cut_tokens", count(cut_tokens)},
         {"cut_trained_tokens", count(cut_trainable)},
         {"dropped_trained_tokens", count(dropped_trainable)},
         {"lost_fraction", io::Json::number(lost_fraction())},
         {"without_anchor", json_of(without_anchor)},
         {"duplicates", json_of(duplicates)},
         {"vanished_bytes", count(vanished_bytes)},
         {"reasoning_left_out", count(left_out.reasoning)},
         {"text_left_out", count(left_out.text)},
         {"tools_left_out", count(left_out.tools)}});
    return json_of_maps(*this, std::move(json));
}

}  // namespace dflash::data
