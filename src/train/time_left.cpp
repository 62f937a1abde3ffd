// SPDX-License-Identifier: Apache-2.0
#include <dflash/train/time_left.hpp>

namespace dflash::train {

void TimeLeft::add(double trained_s, double done) {
    // A hundred points in a window are as good as all of them.
    constexpr double kPointsInWindow = 100;
    if (points_.size() >= 2 &&
        trained_s - points_[points_.size() - 2].trained_s < window_s_ / kPointsInWindow) {
        points_.back() = {trained_s, done};
    } else {
        points_.push_back({trained_s, done});
    }
    while (points_.size() > 2 && trained_s - points_[1].trained_s >= window_s_) {
        points_.pop_front();
    }
}

std::optional<double> TimeLeft::left_s() const {
    if (points_.size() < 2) {
        return std::nullopt;
    }
    const Point& first = points_.front();
    const Point& last = points_.back();
    if (!(last.done > first.done) || !(last.trained_s > first.trained_s)) {
        return std::nullopt;
    }
    return (1 - last.done) * (last.trained_s - first.trained_s) / (last.done - first.done);
}

}  // namespace dflash::train
