// SPDX-License-Identifier: Apache-2.0
#include <dflash/core/error.hpp>
#include <dflash/train/numeric_policy.hpp>

#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <map>
#include <utility>

namespace dflash::train {
namespace {

// Samples that a message names; a row can hold hundreds.
constexpr std::size_t kSamplesNamed = 16;

/// Rows for which `is_bad` holds; empty if there are none.
template <class Predicate>
std::vector<const RowEvidence*> rows_where(const std::vector<RowEvidence>& rows, Predicate is_bad) {
    std::vector<const RowEvidence*> found;
    for (const RowEvidence& row : rows) {
        if (is_bad(row)) {
            found.push_back(&row);
        }
    }
    return found;
}

NonFinite describe(NonFinite::Source source,
                   std::string tensor,
                   const std::vector<const RowEvidence*>& concerned,
                   std::size_t rows_of_step) {
    NonFinite result{.source = source,
                     .tensor = std::move(tensor),
                     .samples = {},
                     .rows = static_cast<std::int64_t>(concerned.size()),
                     .rows_of_step = static_cast<std::int64_t>(rows_of_step)};
    for (const RowEvidence* row : concerned) {
        result.samples.insert(result.samples.end(), row->samples.begin(), row->samples.end());
    }
    return result;
}

/// On every drafter the row with which the gradient stopped being finite.
std::vector<const RowEvidence*> rows_that_broke_the_gradient(const std::vector<RowEvidence>& rows) {
    std::map<std::int64_t, bool> broken;  // by drafter
    return rows_where(rows, [&](const RowEvidence& row) {
        return !std::isfinite(row.gradient_so_far) && !std::exchange(broken[row.drafter], true);
    });
}

std::string first_bad_gradient(const std::vector<GradientEvidence>& gradients) {
    const auto first =
        std::find_if(gradients.rbegin(), gradients.rend(), [](const GradientEvidence& gradient) {
            return !std::isfinite(gradient.norm);
        });
    return first == gradients.rend() ? "norm of the gradient" : "gradient of " + first->weight;
}

}  // namespace

NonFinite find_non_finite(const std::vector<RowEvidence>& rows,
                          const std::vector<GradientEvidence>& gradients) {
    const auto with_bad_features = rows_where(
        rows, [](const RowEvidence& row) { return !std::isfinite(row.largest_feature); });
    if (!with_bad_features.empty()) {
        return describe(
            NonFinite::Source::Features, "features of the target", with_bad_features, rows.size());
    }
    const auto with_bad_loss =
        rows_where(rows, [](const RowEvidence& row) { return !std::isfinite(row.loss); });
    if (!with_bad_loss.empty()) {
        return describe(NonFinite::Source::Loss, "loss", with_bad_loss, rows.size());
    }
    auto concerned = rows_that_broke_the_gradient(rows);
    if (concerned.empty()) {
        // Finite on every drafter, but not together.
        concerned = rows_where(rows, [](const RowEvidence&) { return true; });
    }
    return describe(
        NonFinite::Source::Gradient, first_bad_gradient(gradients), concerned, rows.size());
}

NumericPolicy::NumericPolicy(std::string run_folder, PlaceOf place_of, std::int64_t skipped_before)
    : run_folder_(std::move(run_folder)),
      place_of_(std::move(place_of)),
      skipped_before_(skipped_before) {}

std::optional<std::string> NumericPolicy::take(std::int64_t step,
                                               const std::optional<NonFinite>& non_finite) {
    while (!recent_.empty() && recent_.front().step <= step - kWindow) {
        recent_.pop_front();
    }
    if (!non_finite) {
        in_a_row_ = 0;
        ++taken_;
        return std::nullopt;
    }
    recent_.push_back({step, *non_finite});
    ++in_a_row_;
    ++skipped_;
    if (in_a_row_ >= kMostInARow) {
        end_run(fmt::format("{} steps in a row were skipped", in_a_row_),
                {recent_.end() - in_a_row_, recent_.end()});
    }
    if (std::ssize(recent_) >= kMostInWindow) {
        end_run(fmt::format("{} of the last {} steps were skipped, expected less than {} of {}",
                            recent_.size(),
                            std::min(kWindow, taken_ + skipped_),
                            kMostInWindow,
                            kWindow),
                {recent_.begin(), recent_.end()});
    }
    return fmt::format(
        "step {} is skipped, nothing is changed by it: {} not finite in {} of its {} rows ({}); {} "
        "skipped in this run, {} in a row end the run",
        step,
        non_finite->tensor,
        non_finite->rows,
        non_finite->rows_of_step,
        list_samples(*non_finite),
        skipped(),
        kMostInARow);
}

/// The first of them is told: what follows is often its consequence.
void NumericPolicy::end_run(const std::string& too_many, const std::vector<Skip>& skips) const {
    std::vector<std::int64_t> steps;
    for (const Skip& skip : skips) {
        steps.push_back(skip.step);
    }
    const NonFinite& first = skips.front().reason;
    ErrorParts parts{.what = fmt::format(
                         "{} ({}); at step {} the first that was not finite: {}, in {} of {} rows",
                         too_many,
                         fmt::join(steps, ", "),
                         steps.front(),
                         first.tensor,
                         first.rows,
                         first.rows_of_step),
                     .where = list_samples(first),
                     .cause = {},
                     .hint = {}};
    if (first.source == NonFinite::Source::Features) {
        parts.cause =
            "the target computes NaN or infinity for these samples; its weights were "
            "finite when they were loaded";
        parts.hint =
            "Run the target on them elsewhere; if it serves them well report it, "
            "otherwise leave them out of --data";
    } else if (taken_ == 0) {
        parts.cause = "no step since the start was finite, the features of the target were";
        parts.hint =
            "Look for very large numbers in the weights of the drafter that the run "
            "started from";
    } else {
        parts.cause = "the drafter diverged: the features of the target were finite";
        parts.hint = fmt::format(
            "Start a new run with a lower train.lr or a smaller train.clip; --init {}/latest/draft "
            "starts it from the last saved drafter",
            run_folder_);
    }
    throw Error(ErrorKind::Numeric, std::move(parts));
}

/// An id is the place of a line over all files, so one place tells how to find the others.
std::string NumericPolicy::list_samples(const NonFinite& reason) const {
    if (reason.samples.empty()) {
        return "no samples";
    }
    std::string list =
        fmt::format("samples {} ({})", reason.samples.front(), place_of_(reason.samples.front()));
    for (std::size_t i = 1; i < std::min(kSamplesNamed, reason.samples.size()); ++i) {
        list += fmt::format(", {}", reason.samples[i]);
    }
    if (reason.samples.size() > kSamplesNamed) {
        list += fmt::format(" and {} more", reason.samples.size() - kSamplesNamed);
    }
    return list;
}

}  // namespace dflash::train
