// SPDX-License-Identifier: Apache-2.0
#include <dflash/report/chart.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <fmt/format.h>
#include <limits>
#include <optional>

namespace dflash::report {
namespace {

/// What the two styles draw with. A curve enters a column at its left end and leaves it at the row
/// of the column's own value.
struct Pen {
    const char* level;
    const char* vertical;
    const char* from_left_down;  // corners, named by where the line goes
    const char* from_left_up;
    const char* down_to_right;
    const char* up_to_right;
    const char* axis;
    const char* axis_tick;
    const char* corner;
    const char* base;
};

constexpr Pen kBox{"\u2500",
                   "\u2502",
                   "\u256e",
                   "\u256f",
                   "\u2570",
                   "\u256d",
                   "\u2502",
                   "\u2524",
                   "\u2514",
                   "\u2500"};
constexpr Pen kAscii{"*", "*", "*", "*", "*", "*", "|", "+", "+", "-"};

struct Range {
    double low;
    double high;

    double span() const { return high - low; }
};

Range range_of(const std::vector<ChartPoint>& points, double ChartPoint::*member) {
    const auto [low, high] = std::minmax_element(
        points.begin(), points.end(), [member](const ChartPoint& a, const ChartPoint& b) {
            return a.*member < b.*member;
        });
    return {(*low).*member, (*high).*member};
}

/// Mean of the points of each column; columns without points lie on the line between neighbours.
std::vector<double> column_values(const std::vector<ChartPoint>& points,
                                  Range x_range,
                                  std::size_t columns) {
    std::vector<double> sums(columns, 0.0);
    std::vector<int> counts(columns, 0);
    for (const ChartPoint& point : points) {
        const double place = x_range.span() > 0 ? (point.x - x_range.low) / x_range.span() : 0.0;
        const auto column =
            static_cast<std::size_t>(std::lround(place * static_cast<double>(columns - 1)));
        sums[column] += point.y;
        ++counts[column];
    }
    std::vector<double> values(columns, 0.0);
    std::optional<std::size_t> previous;
    for (std::size_t c = 0; c < columns; ++c) {
        if (counts[c] == 0) {
            continue;
        }
        values[c] = sums[c] / counts[c];
        const std::size_t from = previous.value_or(c);
        for (std::size_t between = from + 1; between < c; ++between) {
            const double share =
                static_cast<double>(between - from) / static_cast<double>(c - from);
            values[between] = values[from] + share * (values[c] - values[from]);
        }
        previous = c;
    }
    values.resize(*previous + 1);  // a single x fills only the first column
    return values;
}

/// Numbers as short as tells them apart on an axis; whole if both ends of the axis are.
std::string label_of(double value, Range range) {
    const double magnitude = std::max(std::abs(value), range.span());
    if (magnitude != 0 && (magnitude >= 1e7 || magnitude < 1e-3)) {
        return fmt::format("{:.2e}", value);
    }
    const bool whole = range.low == std::floor(range.low) && range.high == std::floor(range.high) &&
                       value == std::floor(value);
    const int decimals = whole || range.span() >= 100 ? 0
                         : range.span() >= 1          ? 2
                         : range.span() >= 0.1        ? 3
                                                      : 4;
    return fmt::format("{:.{}f}", value, decimals);
}

using Grid = std::vector<std::vector<const char*>>;

/// Draws the curve; row 0 is the top.
Grid draw_curve(const std::vector<std::size_t>& rows, std::size_t height, const Pen& pen) {
    Grid grid(height, std::vector<const char*>(rows.size(), " "));
    for (std::size_t c = 0; c < rows.size(); ++c) {
        const std::size_t from = c == 0 ? rows[c] : rows[c - 1];
        const std::size_t to = rows[c];
        if (from == to) {
            grid[to][c] = pen.level;
            continue;
        }
        for (std::size_t r = std::min(from, to) + 1; r < std::max(from, to); ++r) {
            grid[r][c] = pen.vertical;
        }
        grid[from][c] = from < to ? pen.from_left_down : pen.from_left_up;
        grid[to][c] = from < to ? pen.down_to_right : pen.up_to_right;
    }
    return grid;
}

}  // namespace

std::vector<std::string> draw_chart(std::span<const ChartPoint> points,
                                    const ChartOptions& options) {
    std::vector<ChartPoint> finite;
    std::copy_if(points.begin(), points.end(), std::back_inserter(finite), [](const ChartPoint& p) {
        // Beyond this, the width of the range would not be finite.
        constexpr double kLargest = 1e300;
        return std::abs(p.x) <= kLargest && std::abs(p.y) <= kLargest;
    });
    std::vector<std::string> lines;
    if (!options.title.empty()) {
        lines.push_back(options.title);
    }
    if (finite.empty()) {
        lines.push_back(fmt::format("(no points to draw, {} left out)", points.size()));
        return lines;
    }
    const Range x_range = range_of(finite, &ChartPoint::x);
    const Range y_range = range_of(finite, &ChartPoint::y);
    const auto height = static_cast<std::size_t>(std::max(options.height, 3));
    const std::string top = label_of(y_range.high, y_range);
    const std::size_t middle_row = height / 2;
    const double middle_share = static_cast<double>(middle_row) / static_cast<double>(height - 1);
    const std::string middle = label_of(y_range.high - middle_share * y_range.span(), y_range);
    const std::string bottom = label_of(y_range.low, y_range);
    const std::size_t label_width = std::max({top.size(), middle.size(), bottom.size()});
    const auto width = static_cast<std::size_t>(std::max(options.width, 30));
    const std::size_t columns = width - std::min(width - 10, label_width + 2);

    std::vector<std::size_t> rows;
    for (const double value : column_values(finite, x_range, columns)) {
        const double depth = y_range.span() > 0 ? (y_range.high - value) / y_range.span() : 0.5;
        rows.push_back(static_cast<std::size_t>(
            std::lround(std::clamp(depth, 0.0, 1.0) * static_cast<double>(height - 1))));
    }
    const Pen& pen = options.box_lines ? kBox : kAscii;
    const Grid grid = draw_curve(rows, height, pen);
    for (std::size_t r = 0; r < height; ++r) {
        // A flat curve has one value, in the middle.
        const bool flat = y_range.span() == 0;
        const std::string label = r == height / 2   ? middle
                                  : flat            ? ""
                                  : r == 0          ? top
                                  : r == height - 1 ? bottom
                                                    : "";
        std::string line =
            fmt::format("{:>{}} {}", label, label_width, label.empty() ? pen.axis : pen.axis_tick);
        for (const char* cell : grid[r]) {
            line += cell;
        }
        line.erase(line.find_last_not_of(' ') + 1);
        lines.push_back(std::move(line));
    }
    std::string axis = std::string(label_width + 1, ' ') + pen.corner;
    for (std::size_t c = 0; c < columns; ++c) {
        axis += pen.base;
    }
    lines.push_back(std::move(axis));
    const std::string left = label_of(x_range.low, x_range);
    const std::string right = label_of(x_range.high, x_range);
    lines.push_back(fmt::format("{:{}}{}{:^{}}{}",
                                "",
                                label_width + 2,
                                left,
                                options.x_label,
                                columns - std::min(columns, left.size() + right.size()),
                                right));
    if (finite.size() < points.size()) {
        lines.push_back(fmt::format("({} points without a usable value left out)",
                                    points.size() - finite.size()));
    }
    return lines;
}

}  // namespace dflash::report
