// SPDX-License-Identifier: Apache-2.0
#include "text_width.hpp"

#include <dflash/core/text.hpp>
#include <dflash/report/status_block.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <fmt/format.h>
#include <utility>

namespace dflash::report {
namespace {

enum class Style { Plain, Bold, Alert };

struct Field {
    std::string text;
    Style style = Style::Plain;
};

/// Fields that belong together.
using Group = std::vector<Field>;

constexpr int kGap = 2;  // columns between fields

/// A run that makes no step for that long, and for that many times the usual, is pointed at.
constexpr double kSlowStep_s = 30;
constexpr double kSlowStepFactor = 10;

std::string styled(const Field& field, bool colours) {
    if (!colours || field.style == Style::Plain) {
        return field.text;
    }
    return fmt::format("\033[{}m{}\033[m", field.style == Style::Bold ? 1 : 33, field.text);
}

/// Puts fields one behind the other into lines of `columns`; false once `lines` has `limit` lines
/// and the next one does not fit. A field that is wider than a line is cut.
class Flow {
  public:
    Flow(BlockSpace space, int limit) : space_(space), limit_(limit) {}

    bool add(const Field& field) {
        const int width = display_width(field.text);
        if (lines_.empty() || used_ + kGap + width > space_.columns) {
            if (std::ssize(lines_) == limit_) {
                return false;
            }
            lines_.emplace_back();
            used_ = 0;
        } else {
            lines_.back().append(kGap, ' ');
            used_ += kGap;
        }
        lines_.back() += cut_to_width(styled(field, space_.colours), space_.columns);
        used_ += width;
        return true;
    }

    void break_line() { used_ = space_.columns; }

    const std::vector<std::string>& lines() const { return lines_; }

  private:
    BlockSpace space_;
    int limit_;
    int used_ = 0;
    std::vector<std::string> lines_;
};

/// Each group on lines of its own if there is room for all of them, otherwise all behind one
/// another for as long as there is room.
std::vector<std::string> lay_out(const std::vector<Group>& groups, BlockSpace space, int limit) {
    Flow grouped(space, limit);
    bool fits = true;
    for (const Group& group : groups) {
        for (const Field& field : group) {
            fits = fits && grouped.add(field);
        }
        grouped.break_line();
    }
    if (fits) {
        return grouped.lines();
    }
    Flow flowing(space, limit);
    for (const Group& group : groups) {
        for (const Field& field : group) {
            if (!flowing.add(field)) {
                return flowing.lines();
            }
        }
    }
    return flowing.lines();
}

std::string clock(double seconds) {
    const auto whole =
        static_cast<std::int64_t>(std::isfinite(seconds) ? std::max(seconds, 0.0) : 0);
    return fmt::format("{}:{:02}:{:02}", whole / 3600, whole / 60 % 60, whole % 60);
}

std::string per_second(double tokens) {
    return std::isfinite(tokens) ? format_count(std::llround(tokens)) : "-";
}

Field state_field(const RunStatus& status) {
    const std::string state =
        status.doing.empty()
            ? std::string(to_string(status.state))
            : fmt::format("{}: {}", to_string(status.state), printable(status.doing));
    return {state, status.state == RunState::Failed ? Style::Alert : Style::Bold};
}

/// What is noticed about a run that stands still.
std::optional<Field> standstill(const RunStatus& status, double now_s) {
    if (status.state != RunState::Training || !status.step || status.step->step == 0) {
        return std::nullopt;
    }
    const double since_s = now_s - status.step->at_s;
    const double usual_s = status.step->seconds / static_cast<double>(status.step->step);
    if (!(since_s > kSlowStep_s && since_s > kSlowStepFactor * usual_s)) {
        return std::nullopt;
    }
    return Field{fmt::format("no step for {}", format_seconds(since_s)), Style::Alert};
}

std::vector<Group> header(const RunStatus& status, double now_s) {
    // Speeds and use of an ended run are what they were at its end, not what they are.
    const bool live = is_live(status.state);
    Group first = {state_field(status)};
    Group learning;
    Group speed;
    Group more;
    if (status.step) {
        const StepStatus& step = *status.step;
        first.push_back({fmt::format("step {}", format_count(step.step))});
        first.push_back({fmt::format("{:.1f} %", 100 * step.fraction_done)});
        learning.push_back({fmt::format("loss {:.4f}", step.loss),
                            std::isfinite(step.loss) ? Style::Plain : Style::Alert});
        learning.push_back({fmt::format("accuracy {:.1f} %", 100 * step.accuracy)});
        if (live) {
            speed.push_back(
                {fmt::format("drafter {} tok/s", per_second(step.drafter_tokens_per_s))});
            speed.push_back({fmt::format("target {} tok/s", per_second(step.target_tokens_per_s))});
            speed.push_back({fmt::format("waited: drafter {:.0f} %, target {:.0f} %",
                                         100 * step.drafter_waited,
                                         100 * step.target_waited)});
        }
        learning.push_back({fmt::format("lr {:.2e}", step.learning_rate)});
    }
    if (const auto field = standstill(status, now_s)) {
        first.push_back(*field);
    } else if (live && status.step && status.step->left_s) {
        first.push_back({fmt::format("{} left", format_seconds(*status.step->left_s))});
    }
    first.push_back({fmt::format("up {}", clock(now_s - status.started_s))});
    if (status.held_out) {
        learning.push_back({fmt::format("held-out acceptance {:.3f} at step {} (bigram {:.3f})",
                                        status.held_out->acceptance_length,
                                        format_count(status.held_out->step),
                                        status.held_out->bigram_acceptance_length)});
    }
    if (status.decoded) {
        const report::DecodedStatus& decoded = *status.decoded;
        learning.push_back({fmt::format("decoding tau {:.3f} at step {}{}",
                                        decoded.tau,
                                        format_count(decoded.step),
                                        decoded.first_tau && decoded.step > 0
                                            ? fmt::format(" ({:.3f} at step 0)", *decoded.first_tau)
                                            : "")});
    }
    if (!status.background.empty()) {
        more.push_back({printable(status.background)});
    }
    if (status.saved) {
        more.push_back({fmt::format("saved step {} {} ago",
                                    format_count(status.saved->step),
                                    format_seconds(std::max(now_s - status.saved->at_s, 0.0)))});
    }
    if (live && status.process_bytes > 0) {
        more.push_back({fmt::format("process {:.0f} % CPU, {}",
                                    100 * status.process_cpu,
                                    format_bytes(status.process_bytes))});
    }
    if (status.warnings > 0) {
        more.push_back({fmt::format("{} warning{}: {}",
                                    status.warnings,
                                    status.warnings == 1 ? "" : "s",
                                    printable(status.last_warning)),
                        Style::Alert});
    }
    std::vector<Group> groups;
    for (Group* group : {&first, &learning, &speed, &more}) {
        if (!group->empty()) {
            groups.push_back(std::move(*group));
        }
    }
    return groups;
}

std::string percent(double share) {
    return std::isfinite(share) ? fmt::format("{:3.0f} %", 100 * share) : "  - %";
}

/// "97 %", or "95-99 %" over several devices.
template <class Get>
std::string range_of(const std::vector<DeviceStatus>& devices, Get get, const char* format) {
    double low = INFINITY;
    double high = -INFINITY;
    for (const DeviceStatus& device : devices) {
        if (const std::optional<double> value = get(device); value && std::isfinite(*value)) {
            low = std::min(low, *value);
            high = std::max(high, *value);
        }
    }
    if (low > high) {
        return {};
    }
    const std::string text = fmt::format(fmt::runtime(format), low);
    const std::string other = fmt::format(fmt::runtime(format), high);
    return text == other ? text : text + "-" + other;
}

std::string waiting(const DeviceStatus& device) {
    if (device.waits_for.empty()) {
        return {};
    }
    return fmt::format("waits {:2.0f} % ({})", 100 * device.waited, printable(device.waits_for));
}

constexpr double kGib = 1024.0 * 1024 * 1024;

/// Cells of a device's line, from the most important one to the least.
using Cells = std::array<std::string, 7>;

Cells cells_of(const std::vector<DeviceStatus>& devices) {
    const DeviceStatus& first = devices.front();
    Cells cells;
    cells[0] = printable(
        devices.size() == 1 ? first.name : fmt::format("{} - {}", first.name, devices.back().name));
    cells[1] = printable(first.role);
    std::string use = range_of(
        devices,
        [](const DeviceStatus& d) { return d.use ? std::optional(100 * *d.use) : std::nullopt; },
        "{:.0f}");
    const char* what = "use";
    if (use.empty()) {
        what = "busy";
        use = range_of(
            devices, [](const DeviceStatus& d) { return std::optional(100 * d.busy); }, "{:.0f}");
    }
    cells[2] = use.empty() ? std::string() : fmt::format("{} {:>3} %", what, use);
    const std::string memory = range_of(
        devices,
        [](const DeviceStatus& d) {
            return d.memory_used_bytes
                       ? std::optional(static_cast<double>(*d.memory_used_bytes) / kGib)
                       : std::nullopt;
        },
        "{:.1f}");
    if (!memory.empty() && first.memory_total_bytes) {
        cells[3] = fmt::format(
            "{}/{:.1f} GiB", memory, static_cast<double>(*first.memory_total_bytes) / kGib);
    }
    const auto waits_most =
        std::ranges::max_element(devices, {}, [](const DeviceStatus& d) { return d.waited; });
    cells[4] = waiting(*waits_most);
    const std::string power = range_of(
        devices, [](const DeviceStatus& d) { return d.power_w; }, "{:.0f}");
    const auto as_double = [](std::optional<std::int64_t> value) {
        return value ? std::optional(static_cast<double>(*value)) : std::nullopt;
    };
    const std::string speed = range_of(
        devices, [&](const DeviceStatus& d) { return as_double(d.sm_clock_mhz); }, "{:.0f}");
    const std::string heat = range_of(
        devices, [&](const DeviceStatus& d) { return as_double(d.temperature_c); }, "{:.0f}");
    cells[5] = fmt::format("{}{}{}",
                           power.empty() ? "" : power + " W",
                           power.empty() || speed.empty() ? "" : " ",
                           speed.empty() ? "" : speed + " MHz");
    cells[6] = heat.empty() ? std::string() : heat + " C";
    return cells;
}

/// Lines of a table; columns that do not fit into the width are left away.
std::vector<std::string> table(const std::vector<Cells>& rows, int columns) {
    std::array<int, std::tuple_size_v<Cells>> widths{};
    for (const Cells& row : rows) {
        for (std::size_t i = 0; i < row.size(); ++i) {
            widths[i] = std::max(widths[i], display_width(row[i]));
        }
    }
    std::vector<std::string> lines(rows.size());
    int used = 0;
    for (std::size_t i = 0; i < widths.size(); ++i) {
        const int gap = used == 0 ? 0 : kGap;
        if (widths[i] == 0 || (i > 0 && used + gap + widths[i] > columns)) {
            continue;
        }
        for (std::size_t r = 0; r < rows.size(); ++r) {
            // Padded up to the column, so that no line ends in spaces.
            if (!rows[r][i].empty()) {
                lines[r].append(static_cast<std::size_t>(used + gap - display_width(lines[r])),
                                ' ');
                lines[r] += rows[r][i];
            }
        }
        used += gap + widths[i];
    }
    for (std::string& line : lines) {
        line = cut_to_width(line, columns);
    }
    return lines;
}

/// Neighbours of one role together.
std::vector<std::vector<DeviceStatus>> by_role(const std::vector<DeviceStatus>& devices) {
    std::vector<std::vector<DeviceStatus>> groups;
    for (const DeviceStatus& device : devices) {
        if (groups.empty() || groups.back().front().role != device.role) {
            groups.emplace_back();
        }
        groups.back().push_back(device);
    }
    return groups;
}

std::vector<std::string> device_lines(const std::vector<DeviceStatus>& devices,
                                      int columns,
                                      int limit) {
    std::vector<Cells> rows;
    if (std::ssize(devices) <= limit) {
        for (const DeviceStatus& device : devices) {
            rows.push_back(cells_of({device}));
        }
        return table(rows, columns);
    }
    std::size_t shown = 0;
    const auto groups = by_role(devices);
    const bool all = std::ssize(groups) <= limit;
    for (const auto& group : groups) {
        if (all || std::ssize(rows) + 1 < limit) {
            rows.push_back(cells_of(group));
            shown += group.size();
        }
    }
    std::vector<std::string> lines = table(rows, columns);
    if (!all && limit > 0) {
        lines.push_back(
            cut_to_width(fmt::format("and {} more devices", devices.size() - shown), columns));
    }
    return lines;
}

}  // namespace

std::vector<std::string> block_lines(const RunStatus& status, BlockSpace space, double now_s) {
    constexpr int kHeaderAtLeast = 2;  // of a block of ten lines eight are left for devices
    const std::vector<DeviceStatus> none;
    const std::vector<DeviceStatus>& devices = is_live(status.state) ? status.devices : none;
    const auto num_devices = static_cast<int>(devices.size());
    const int for_header =
        std::max(space.lines - num_devices, std::min(kHeaderAtLeast, space.lines));
    std::vector<std::string> lines = lay_out(header(status, now_s), space, for_header);
    const int left = space.lines - static_cast<int>(lines.size());
    for (std::string& line : device_lines(devices, space.columns, left)) {
        lines.push_back(std::move(line));
    }
    return lines;
}

std::vector<std::string> waiting_lines(const RunStatus& status) {
    std::vector<std::string> lines;
    for (const DeviceStatus& device : status.devices) {
        lines.push_back(fmt::format("{}  {}  {} of the time in tasks, {} queued or running{}{}",
                                    device.name,
                                    device.role,
                                    percent(device.busy),
                                    device.tasks,
                                    device.waits_for.empty() ? "" : "; ",
                                    waiting(device)));
    }
    return lines;
}

}  // namespace dflash::report
