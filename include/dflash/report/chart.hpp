// SPDX-License-Identifier: Apache-2.0
// A small line chart in text.
#pragma once

#include <span>
#include <string>
#include <vector>

namespace dflash::report {

struct ChartPoint {
    double x = 0;
    double y = 0;
};

struct ChartOptions {
    int width = 72;         ///< columns of the whole, labels included; at least 30
    int height = 12;        ///< lines of the plot, without title and axis; at least 3
    std::string title;      ///< above the plot; none if empty
    std::string x_label;    ///< below the plot
    bool box_lines = true;  ///< draw with the box characters of Unicode; else with ASCII only
};

/// The lines of a chart of the points (in any order). Points that fall into one column are
/// averaged, columns without points are bridged by a straight line; points that are not finite (or
/// beyond 1e300) are left out and counted in the last line. Without any point the chart is one line
/// that says so.
std::vector<std::string> draw_chart(std::span<const ChartPoint> points,
                                    const ChartOptions& options = {});

}  // namespace dflash::report
