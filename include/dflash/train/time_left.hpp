// SPDX-License-Identifier: Apache-2.0
// When a run will be done, from the speed it had of late.
#pragma once

#include <deque>
#include <optional>

namespace dflash::train {

class TimeLeft {
  public:
    /// `window_s`: how far back the speed is measured. Long enough for evaluations and saves to be
    /// in it with their share.
    explicit TimeLeft(double window_s = 1800) : window_s_(window_s) {}

    /// The run has trained for that long and has that share of it done, in [0, 1]; both rise.
    void add(double trained_s, double done);

    /// Seconds; nothing before there are two points, and while nothing gets done.
    std::optional<double> left_s() const;

  private:
    struct Point {
        double trained_s;
        double done;
    };

    double window_s_;
    std::deque<Point> points_;
};

}  // namespace dflash::train
