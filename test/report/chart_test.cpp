// SPDX-License-Identifier: Apache-2.0
#include <dflash/report/chart.hpp>

#include <algorithm>
#include <cmath>
#include <doctest/doctest.h>
#include <limits>

namespace dflash::report {
namespace {

using Lines = std::vector<std::string>;

/// Characters of a line of UTF-8.
std::size_t columns_of(const std::string& line) {
    std::size_t count = 0;
    for (const char c : line) {
        count += (c & 0xC0) != 0x80 ? 1 : 0;
    }
    return count;
}

TEST_SUITE_BEGIN("report.chart");

TEST_CASE("a falling curve falls, with labels of both axes") {
    std::vector<ChartPoint> points;
    for (int i = 0; i < 27; ++i) {
        points.push_back({100.0 + i, 5.0 - i / 6.5});
    }
    const ChartOptions options{
        .width = 30, .height = 5, .title = "loss", .x_label = "step", .box_lines = false};
    // A row is 6.5 columns long; where the curve changes rows, both are marked.
    CHECK(draw_chart(points, options) == Lines{
                                             "loss",
                                             "5 +*****",
                                             "  |    *******",
                                             "3 +          ********",
                                             "  |                 *******",
                                             "1 +                       ****",
                                             "  +---------------------------",
                                             "   100        step         126",
                                         });
}

TEST_CASE("the box style joins the steps of the curve") {
    const ChartPoint points[] = {{0, 0}, {1, 0}, {2, 2}, {3, 2}, {4, 1}};
    const ChartOptions options{
        .width = 30, .height = 3, .title = {}, .x_label = {}, .box_lines = true};
    const Lines lines = draw_chart(points, options);
    REQUIRE(lines.size() == 5);
    // Rises through the middle row, then falls to it.
    CHECK(lines[0].find("\u256d\u2500") != std::string::npos);
    CHECK(lines[0].find("\u2500\u256e") != std::string::npos);
    CHECK(lines[2].find("\u2500\u256f") != std::string::npos);
    CHECK(lines[1].find("\u2570\u2500") != std::string::npos);
    for (const std::string& line : lines) {
        CHECK(columns_of(line) <= 30);
    }
}

TEST_CASE("any points give a chart of the asked size") {
    constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
    constexpr double kInf = std::numeric_limits<double>::infinity();
    const std::vector<ChartPoint> cases[] = {
        {{1, 2}},
        {{1, 2}, {1, 3}},
        {{1, 2}, {2, 2}, {3, 2}},
        {{3, 1}, {1, 3}, {2, 2}},
        {{0, -1e300}, {1, 1e300}, {2, 1.7e308}, {3, -1.7e308}},
        {{0, 1e-12}, {1e12, 2e-12}},
        {{0, -5}, {1000000, 0.25}},
        {{0, 1}, {1, kNan}, {2, kInf}, {kNan, 1}, {3, 2}},
    };
    for (const std::vector<ChartPoint>& points : cases) {
        CAPTURE(points.size());
        for (const int width : {1, 30, 72, 200}) {
            for (const int height : {1, 3, 12}) {
                CAPTURE(width);
                CAPTURE(height);
                const Lines lines = draw_chart(points,
                                               {.width = width,
                                                .height = height,
                                                .title = {},
                                                .x_label = {},
                                                .box_lines = true});
                const bool has_note = points.size() >= 4;
                CHECK(lines.size() ==
                      static_cast<std::size_t>(std::max(height, 3)) + 2 + (has_note ? 1 : 0));
                for (std::size_t i = 0; i + (has_note ? 1 : 0) < lines.size(); ++i) {
                    CAPTURE(lines[i]);
                    CHECK(columns_of(lines[i]) <= static_cast<std::size_t>(std::max(width, 30)));
                }
            }
        }
    }
    const Lines lines = draw_chart(cases[7]);
    CHECK(lines.back() == "(3 points without a usable value left out)");
}

TEST_CASE("without points a line says so") {
    CHECK(draw_chart({}) == Lines{"(no points to draw, 0 left out)"});
    const ChartPoint bad{0, std::numeric_limits<double>::quiet_NaN()};
    ChartOptions options;
    options.title = "loss";
    CHECK(draw_chart({&bad, 1}, options) == Lines{"loss", "(no points to draw, 1 left out)"});
}

TEST_SUITE_END();

}  // namespace
}  // namespace dflash::report
