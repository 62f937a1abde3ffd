// SPDX-License-Identifier: Apache-2.0
// Warnings about a run that goes on but should be looked at: a loss that has risen, a speed that
// has fallen. Said once when it has lasted, and once when it is over. No clock of their own, no
// output: the caller gives times and prints what comes back.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

namespace dflash::train {

/// A line for the log.
struct Notice {
    bool warning = true;  ///< false: the trouble is over
    std::string text;
};

/// Median of the last `capacity` values.
class RunningMedian {
  public:
    explicit RunningMedian(std::size_t capacity) : capacity_(capacity) {}

    void add(double value);

    std::size_t size() const { return order_.size(); }

    /// Of an even number the mean of the two in the middle; there must be a value.
    double median() const;

  private:
    std::size_t capacity_;
    std::deque<double> order_;    // by age
    std::vector<double> sorted_;  // the same values, rising
};

/// Warns when the loss was above kFactor times its running median in each of kSteps steps.
class LossWatch {
  public:
    static constexpr double kFactor = 2;
    static constexpr std::int64_t kSteps = 100;
    /// Losses that the median is of. Losses above the limit do not enter it: a run that went wrong
    /// must not become its own measure.
    static constexpr std::size_t kMedianOf = 1000;
    /// Losses that must be known before any is judged.
    static constexpr std::size_t kLeast = 100;

    /// One step that was not skipped; in order.
    std::optional<Notice> take(std::int64_t step, double loss);

  private:
    RunningMedian losses_{kMedianOf};
    std::int64_t high_since_ = 0;  // first step above the limit, if high_steps_ > 0
    std::int64_t high_steps_ = 0;
};

/// What an evaluation on held-out rows found.
struct HeldOutAcceptance {
    std::int64_t step = 0;
    double length = 0;  ///< expected tokens of one pass of the target
};

/// At the end of a run: that the best of its evaluations was of a drafter which no checkpoint
/// holds, if it was better by more than kNoticed than the best that one holds. Nothing otherwise.
std::optional<std::string> lost_best(const std::vector<HeldOutAcceptance>& evaluations,
                                     const HeldOutAcceptance& best_saved);

/// Part of an acceptance length that is no noise of the held-out rows.
inline constexpr double kNoticed = 0.01;

/// Totals of a run at one moment.
struct SpeedSample {
    double at_s = 0;  ///< training time
    std::int64_t tokens = 0;
    double drafter_waited_s = 0;  ///< for rows with features
    double target_waited_s = 0;   ///< for slots that drafters give back
    double data_waited_s = 0;     ///< of the target, for packed rows
};

/// Warns when the tokens trained on per second were kDrop below their usual level for kLast_s
/// seconds, and says who waited for whom more than usual.
///
/// Measured over stretches of at least kStretch_s; the usual level is the median of all stretches
/// since the start that were not low. The first stretch is left out: a run that starts fills its
/// slots.
class SpeedWatch {
  public:
    static constexpr double kDrop = 0.2;
    static constexpr double kLast_s = 600;
    static constexpr double kStretch_s = 60;
    static constexpr std::size_t kLeast = 5;  ///< stretches that make a level

    /// After every step, in order.
    std::optional<Notice> take(const SpeedSample& now);

    /// Evaluation or saving took place since the last sample: the time up to the next one does not
    /// count.
    void pause() { paused_ = true; }

  private:
    /// What passed between moments that count.
    struct Stretch {
        double seconds = 0;
        double tokens = 0;
        double drafter_waited_s = 0;
        double target_waited_s = 0;
        double data_waited_s = 0;

        void add(const Stretch& other);
    };

    std::optional<Notice> judge(const Stretch& stretch);
    std::string who_waits() const;

    std::optional<SpeedSample> last_;
    bool paused_ = false;
    bool warmed_up_ = false;
    Stretch current_;
    Stretch usual_;  // all stretches that were not low
    Stretch low_;    // those since the speed fell
    bool told_ = false;
    RunningMedian level_{100000};  // two months of minutes
};

}  // namespace dflash::train
