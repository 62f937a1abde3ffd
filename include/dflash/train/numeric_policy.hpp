// SPDX-License-Identifier: Apache-2.0
// What happens when a loss or a gradient is not finite. The devices skip such a step by themselves
// (optimizer.hpp), which changes nothing; here, two steps later, it is found out what was not
// finite, and decided whether the run goes on. Host values only.
#pragma once

#include <dflash/core/types.hpp>

#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace dflash::train {

/// What a row of a step left behind, for the case that something is not finite.
struct RowEvidence {
    std::vector<SampleId> samples;  ///< documents of the row
    double loss = 0;                ///< sum of w m CE
    double largest_feature = 0;     ///< largest magnitude in the target's features
    /// Sum over the gradient of a weight that the backward pass reaches last, over this row and
    /// those before it on the same drafter.
    double gradient_so_far = 0;
    std::int64_t drafter = 0;
};

/// The norm of a weight's gradient, or of a piece of it, over all rows.
struct GradientEvidence {
    std::string weight;
    double norm = 0;
};

/// What a skipped step is skipped for.
struct NonFinite {
    enum class Source { Features, Loss, Gradient };

    Source source = Source::Gradient;
    std::string tensor;             ///< "loss", "gradient of layers.1.mlp.up_proj.weight"
    std::vector<SampleId> samples;  ///< of the rows concerned; of all rows if none stands out
    std::int64_t rows = 0;          ///< how many rows these are
    std::int64_t rows_of_step = 0;
};

/// The first tensor of a step, in the order in which things are computed, that is not finite:
/// features, then losses, then gradients, which the backward pass makes from the last weight to the
/// first. `rows` in the order of the step, `gradients` in the order of the weights.
NonFinite find_non_finite(const std::vector<RowEvidence>& rows,
                          const std::vector<GradientEvidence>& gradients);

/// Counts skipped steps and ends the run when there are too many: kMostInARow one after another, or
/// kMostInWindow among the last kWindow steps (1 %). Before kWindow steps are done the second rule
/// counts the same number among those that there are, so that one bad row in a young run does not
/// end it. Counting begins anew with a resume.
class NumericPolicy {
  public:
    static constexpr std::int64_t kMostInARow = 3;
    static constexpr std::int64_t kWindow = 1000;
    static constexpr std::int64_t kMostInWindow = kWindow / 100;

    using PlaceOf = std::function<std::string(SampleId)>;  ///< "prompts.jsonl:12", for messages

    /// `run_folder` stands in the advice; `skipped_before`: skipped steps before a resume, which
    /// only skipped() counts.
    NumericPolicy(std::string run_folder, PlaceOf place_of, std::int64_t skipped_before = 0);

    /// Takes the steps in order; `non_finite` is set if this one was skipped. Returns a warning for
    /// a skipped step. No limit of its own on their number is needed: there are fewer than
    /// kMostInWindow of them in kWindow steps. Throws Error{Numeric} for the one that is too much.
    std::optional<std::string> take(std::int64_t step, const std::optional<NonFinite>& non_finite);

    /// Skipped steps of the run.
    std::int64_t skipped() const { return skipped_before_ + skipped_; }

  private:
    struct Skip {
        std::int64_t step;
        NonFinite reason;
    };

    [[noreturn]] void end_run(const std::string& too_many, const std::vector<Skip>& skips) const;
    std::string list_samples(const NonFinite& reason) const;

    std::string run_folder_;
    PlaceOf place_of_;
    std::deque<Skip> recent_;  // skipped steps among the last kWindow
    std::int64_t in_a_row_ = 0;
    std::int64_t taken_ = 0;  // steps that were not skipped
    std::int64_t skipped_ = 0;
    std::int64_t skipped_before_;
};

}  // namespace dflash::train
