// SPDX-License-Identifier: Apache-2.0
#include "report_text.hpp"

#include <dflash/core/text.hpp>
#include <dflash/data/data_report.hpp>

#include <algorithm>
#include <fmt/format.h>

namespace dflash::data {

namespace {

// Above these shares of rows or tokens something is said.
constexpr double kManyLost = 0.10;
constexpr double kManyDuplicates = 0.01;
constexpr double kManyWithoutAnchor = 0.01;
constexpr double kLowCoverage = 0.5;
constexpr double kFewTrained = 0.05;

double share(std::int64_t part, std::int64_t whole) {
    return percent(part, whole) / 100;
}

class Warnings {
  public:
    explicit Warnings(const DataReport& report) : report_(report) {}

    std::vector<DataWarning> collect() {
        about_refused();
        about_cutting();
        about_learning();
        about_left_out();
        return std::move(warnings_);
    }

  private:
    void add(std::string code, std::string what, std::string hint) {
        warnings_.push_back(
            {.code = std::move(code), .what = std::move(what), .hint = std::move(hint)});
    }

    std::string share_of_rows(std::int64_t rows) const {
        return fmt::format("{} of {} rows ({:.3g} %)",
                           format_count(rows),
                           format_count(report_.lines),
                           percent(rows, report_.lines));
    }

    void about_refused();
    void about_cutting();
    void about_learning();
    void about_left_out();

    const DataReport& report_;
    std::vector<DataWarning> warnings_;
};

void Warnings::about_refused() {
    const std::int64_t refused = report_.num_bad() - report_.num_to_answer();
    if (const std::int64_t prompts = report_.num_to_answer(); prompts > 0) {
        add("no_response",
            share_of_rows(prompts) +
                " have no answer to train on: the target answers them in a "
                "run",
            "dflash plan says how long that takes; dflash generate does it beforehand, and "
            "data.responses = \"dataset\" leaves them out");
    } else if (const std::int64_t without = report_.num_refused("prompt_only"); without > 0) {
        add("no_response",
            share_of_rows(without) +
                " end with a question: there is no answer to train on, and they are left out",
            "The target answers them in training with data.responses = \"missing\", or beforehand "
            "with dflash generate");
    }
    if (share(refused, report_.lines) > report_.max_bad_fraction) {
        add("too_many_refused",
            fmt::format("{} are left out, more than data.max_bad_fraction = {} allows: a run "
                        "refuses this data",
                        share_of_rows(refused),
                        report_.max_bad_fraction),
            "Repair the rows listed above, or raise data.max_bad_fraction to train without them");
    }
}

void Warnings::about_cutting() {
    if (report_.lost_fraction() > kManyLost) {
        add("answers_cut",
            fmt::format("{:.3g} % of the tokens to be trained lie behind data.max_length = {} and "
                        "are lost",
                        100 * report_.lost_fraction(),
                        report_.max_length),
            fmt::format("Raise data.max_length: half of the rows have at most {} tokens, 90 % at "
                        "most {}, 99 % at most {}",
                        format_count(report_.length_p50),
                        format_count(report_.length_p90),
                        format_count(report_.length_p99)));
    } else if (const std::int64_t dropped = report_.num_refused("cut_before_answer"); dropped > 0) {
        add("cut_before_answer",
            fmt::format("{} have no answer within the first {} tokens (data.max_length) and are "
                        "left out",
                        share_of_rows(dropped),
                        format_count(report_.max_length)),
            "Raise data.max_length, or shorten their prompts");
    }
}

void Warnings::about_learning() {
    if (share(report_.duplicates.rows, report_.usable) > kManyDuplicates) {
        add("many_duplicates",
            fmt::format("{} say the same as an earlier row ({} ...)",
                        share_of_rows(report_.duplicates.rows),
                        report_.duplicates.places.front()),
            "Remove them: they are trained on more often than the others, and the held-out "
            "accuracy counts rows that were trained on");
    }
    if (share(report_.without_anchor.rows, report_.usable) > kManyWithoutAnchor) {
        add("without_anchor",
            share_of_rows(report_.without_anchor.rows) +
                " have no two trained tokens side by side, so that no block can begin: nothing is "
                "learned from them",
            "Leave out rows whose answers are a single token");
    }
    const double coverage = report_.trainable_tokens == 0
                                ? 1
                                : report_.covered / static_cast<double>(report_.trainable_tokens);
    if (report_.capped > 0 && coverage < kLowCoverage) {
        add("low_coverage",
            fmt::format("the blocks of an epoch predict {:.3g} % of the tokens to be trained: {} "
                        "have more than {} places for a block",
                        100 * coverage,
                        share_of_rows(report_.capped),
                        format_count(report_.max_anchors)),
            "Raise draft.anchors, or train for more epochs: each draws others");
    }
    if (report_.usable > 0 && share(report_.trainable_tokens, report_.tokens) < kFewTrained) {
        add("few_trained",
            fmt::format("only {:.3g} % of the tokens are trained: the target reads far more than "
                        "the drafter learns",
                        percent(report_.trainable_tokens, report_.tokens)),
            "Check the mask in the samples; shorten the prompts if they are right");
    }
}

void Warnings::about_left_out() {
    if (report_.left_out.reasoning > 0) {
        add("reasoning_left_out",
            counted(report_.left_out.reasoning, "message") +
                " with reasoning that is not in the text: the chat format leaves it out, as a "
                "server does in later turns",
            "To train on it, cut the conversation into one row a turn");
    }
    if (report_.left_out.text > 0) {
        add("text_left_out",
            counted(report_.left_out.text, "message") +
                " with text before or between think blocks, which the chat format leaves out",
            "Move the reasoning to reasoning_content");
    }
    if (report_.left_out.tools > 0) {
        add("tools_left_out",
            counted(report_.left_out.tools, "row") +
                " with tool definitions, which the chat format has no place for",
            "Train for a target that knows tools, or remove them");
    }
    if (report_.vanished_bytes > 0) {
        add("vanished_bytes",
            counted(report_.vanished_bytes, "byte") +
                " without a token in the target's vocabulary: they are missing from the tokens",
            "Nothing, if these are control characters");
    }
}

}  // namespace

double percent(double part, double whole) {
    return whole == 0 ? 0 : 100 * part / whole;
}

double percent(std::int64_t part, std::int64_t whole) {
    return percent(static_cast<double>(part), static_cast<double>(whole));
}

std::string counted(std::int64_t count, std::string_view noun) {
    return fmt::format("{} {}{}", format_count(count), noun, count == 1 ? "" : "s");
}

double DataReport::lost_fraction() const {
    const std::int64_t lost = cut_trainable + dropped_trainable;
    return share(lost, trainable_tokens + lost);
}

std::vector<DataWarning> DataReport::warnings() const {
    return Warnings(*this).collect();
}

}  // namespace dflash::data
