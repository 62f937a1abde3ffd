// SPDX-License-Identifier: Apache-2.0
#include <dflash/core/check.hpp>
#include <dflash/core/text.hpp>
#include <dflash/train/run_warnings.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <fmt/format.h>
#include <utility>

namespace dflash::train {

void RunningMedian::add(double value) {
    DFLASH_CHECK(!std::isnan(value), "a median of NaN");
    if (order_.size() == capacity_) {
        sorted_.erase(std::lower_bound(sorted_.begin(), sorted_.end(), order_.front()));
        order_.pop_front();
    }
    order_.push_back(value);
    sorted_.insert(std::upper_bound(sorted_.begin(), sorted_.end(), value), value);
}

double RunningMedian::median() const {
    DFLASH_CHECK(!sorted_.empty(), "the median of nothing");
    const std::size_t middle = sorted_.size() / 2;
    return sorted_.size() % 2 == 1 ? sorted_[middle] : (sorted_[middle - 1] + sorted_[middle]) / 2;
}

std::optional<Notice> LossWatch::take(std::int64_t step, double loss) {
    const bool high =
        losses_.size() >= kLeast && std::isfinite(loss) && loss > kFactor * losses_.median();
    if (!high) {
        const std::int64_t high_steps = std::exchange(high_steps_, 0);
        if (std::isfinite(loss)) {
            losses_.add(loss);
        }
        if (high_steps < kSteps) {
            return std::nullopt;
        }
        return Notice{.warning = false,
                      .text = fmt::format("the loss is down again at step {}: {:.4f}, after {} "
                                          "steps above {:g} times its running median",
                                          step,
                                          loss,
                                          high_steps,
                                          kFactor)};
    }
    if (high_steps_++ == 0) {
        high_since_ = step;
    }
    if (high_steps_ != kSteps) {
        return std::nullopt;
    }
    return Notice{
        .warning = true,
        .text = fmt::format(
            "the loss has been above {:g} times its running median of {:.4f} since step {} (now "
            "{:.4f}): the drafter may diverge; if it does not come down, start from an earlier "
            "draft with --init and a lower train.lr",
            kFactor,
            losses_.median(),
            high_since_,
            loss)};
}

void SpeedWatch::Stretch::add(const Stretch& other) {
    seconds += other.seconds;
    tokens += other.tokens;
    drafter_waited_s += other.drafter_waited_s;
    target_waited_s += other.target_waited_s;
    data_waited_s += other.data_waited_s;
}

std::optional<Notice> SpeedWatch::take(const SpeedSample& now) {
    const std::optional<SpeedSample> before = std::exchange(last_, now);
    if (std::exchange(paused_, false) || !before) {
        return std::nullopt;
    }
    current_.add({.seconds = now.at_s - before->at_s,
                  .tokens = static_cast<double>(now.tokens - before->tokens),
                  .drafter_waited_s = now.drafter_waited_s - before->drafter_waited_s,
                  .target_waited_s = now.target_waited_s - before->target_waited_s,
                  .data_waited_s = now.data_waited_s - before->data_waited_s});
    if (current_.seconds < kStretch_s) {
        return std::nullopt;
    }
    const Stretch stretch = std::exchange(current_, {});
    if (!std::exchange(warmed_up_, true)) {
        return std::nullopt;
    }
    return judge(stretch);
}

std::optional<Notice> SpeedWatch::judge(const Stretch& stretch) {
    const double speed = stretch.tokens / stretch.seconds;
    const bool low = level_.size() >= kLeast && speed < (1 - kDrop) * level_.median();
    if (!low) {
        const Stretch was_low = std::exchange(low_, {});
        level_.add(speed);
        usual_.add(stretch);
        if (!std::exchange(told_, false)) {
            return std::nullopt;
        }
        return Notice{.warning = false,
                      .text = fmt::format("the speed is back at {} tok/s, after {} below its level",
                                          format_count(std::llround(speed)),
                                          format_seconds(was_low.seconds))};
    }
    low_.add(stretch);
    if (told_ || low_.seconds < kLast_s) {
        return std::nullopt;
    }
    told_ = true;
    const double low_speed = low_.tokens / low_.seconds;
    return Notice{.warning = true,
                  .text = fmt::format("{} tok/s over the last {}, {:.0f} % below the {} of this "
                                      "run so far: {}",
                                      format_count(std::llround(low_speed)),
                                      format_seconds(low_.seconds),
                                      100 * (1 - low_speed / level_.median()),
                                      format_count(std::llround(level_.median())),
                                      who_waits())};
}

/// Names the side that is waited for more than usual. Data comes first: when it is late the
/// drafters wait, too.
std::string SpeedWatch::who_waits() const {
    // Points of a percentage that are no noise.
    constexpr double kGrown = 0.05;

    struct Wait {
        double Stretch::*seconds;
        const char* who;
        const char* look_at;
    };

    static constexpr std::array kWaits = {
        Wait{&Stretch::data_waited_s,
             "the target waited for data",
             "look at the disk that holds it, and at other processes on the CPU"},
        Wait{&Stretch::drafter_waited_s,
             "the drafters waited for the target",
             "look at the target's devices: clocks, temperature, other processes"},
        Wait{&Stretch::target_waited_s,
             "the target waited for the drafters",
             "look at the drafters' devices: clocks, temperature, other processes"},
    };
    for (const Wait& wait : kWaits) {
        const double now = low_.*wait.seconds / low_.seconds;
        const double usual = usual_.*wait.seconds / usual_.seconds;
        if (now >= usual + kGrown) {
            return fmt::format("{} {:.0f} % of the time, {:.0f} % before; {}",
                               wait.who,
                               100 * now,
                               100 * usual,
                               wait.look_at);
        }
    }
    return "nobody waits more than before, so both sides are slower; look at clocks and power "
           "limits of all devices, and at other processes";
}

std::optional<std::string> lost_best(const std::vector<HeldOutAcceptance>& evaluations,
                                     const HeldOutAcceptance& best_saved) {
    const auto best =
        std::max_element(evaluations.begin(), evaluations.end(), [](const auto& a, const auto& b) {
            return a.length < b.length;
        });
    if (best == evaluations.end() || best->length <= (1 + kNoticed) * best_saved.length) {
        return std::nullopt;
    }
    return fmt::format(
        "the best drafter of this run was not saved: held-out acceptance length {:.3f} at step {}, "
        "{:.3f} at step {}, the best that was; a checkpoint.every no longer than eval.every keeps "
        "it{}",
        best->length,
        best->step,
        best_saved.length,
        best_saved.step,
        best_saved.step > best->step
            ? ", and less training (train.epochs, train.hours) or more data would not fall behind "
              "it: the later drafter knows its training data better and others worse"
            : "");
}

}  // namespace dflash::train
