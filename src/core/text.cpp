// SPDX-License-Identifier: Apache-2.0
#include <dflash/core/text.hpp>

#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <numeric>

namespace dflash {
namespace {

std::size_t edit_distance(std::string_view a, std::string_view b) {
    std::vector<std::size_t> row(b.size() + 1);
    std::iota(row.begin(), row.end(), 0);
    for (std::size_t i = 1; i <= a.size(); ++i) {
        std::size_t diagonal = row[0];
        row[0] = i;
        for (std::size_t j = 1; j <= b.size(); ++j) {
            const std::size_t change = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
            diagonal = row[j];
            row[j] = std::min({row[j] + 1, row[j - 1] + 1, change});
        }
    }
    return row[b.size()];
}

/// Bytes of the character that `text` begins with; 0 for control characters (C0, C1, DEL), which a
/// terminal would obey, and for bytes that are not UTF-8.
std::size_t printable_length(std::string_view text) {
    const auto byte = [&](std::size_t i) {
        return i < text.size() ? static_cast<unsigned char>(text[i]) : 0U;
    };
    const auto is_rest = [&](std::size_t i) { return (byte(i) & 0xC0) == 0x80; };
    const unsigned lead = byte(0);
    if (lead < 0x80) {
        return lead < 0x20 || lead == 0x7F ? 0 : 1;
    }
    if (lead >= 0xC2 && lead <= 0xDF && is_rest(1)) {
        return lead == 0xC2 && byte(1) < 0xA0 ? 0 : 2;
    }
    if ((lead & 0xF0) == 0xE0 && is_rest(1) && is_rest(2)) {
        const bool overlong = lead == 0xE0 && byte(1) < 0xA0;
        const bool surrogate = lead == 0xED && byte(1) >= 0xA0;
        return overlong || surrogate ? 0 : 3;
    }
    if (lead >= 0xF0 && lead <= 0xF4 && is_rest(1) && is_rest(2) && is_rest(3)) {
        const bool overlong = lead == 0xF0 && byte(1) < 0x90;
        const bool beyond = lead == 0xF4 && byte(1) >= 0x90;
        return overlong || beyond ? 0 : 4;
    }
    return 0;
}

}  // namespace

std::optional<std::string> nearest_name(std::string_view name,
                                        std::span<const std::string> candidates) {
    std::optional<std::string> best;
    // Two slips, or a third of a long name; a short name must share a letter with what it meant.
    std::size_t best_distance = std::max<std::size_t>(2, name.size() / 3) + 1;
    best_distance = std::min(best_distance, std::max<std::size_t>(name.size(), 1));
    for (const std::string& candidate : candidates) {
        // A bare last part ("lr") names the setting it ends ("train.lr").
        const std::size_t dot = candidate.rfind('.');
        const std::string_view last = dot == std::string::npos
                                          ? std::string_view(candidate)
                                          : std::string_view(candidate).substr(dot + 1);
        const std::size_t distance =
            std::min(edit_distance(name, candidate), edit_distance(name, last) + 1);
        if (distance < best_distance) {
            best_distance = distance;
            best = candidate;
        }
    }
    return best;
}

std::string format_bytes(std::int64_t bytes) {
    const double value = static_cast<double>(bytes);
    const double size = std::abs(value);
    if (size < 1024) {
        return fmt::format("{} B", bytes);
    }
    // Limits where rounding would reach the next unit ("1024.0 KiB").
    if (size < 1023.95 * 1024) {
        return fmt::format("{:.1f} KiB", value / 1024);
    }
    if (size < 1023.95 * 1024 * 1024) {
        return fmt::format("{:.1f} MiB", value / (1024.0 * 1024));
    }
    return fmt::format("{:.2f} GiB", value / (1024.0 * 1024 * 1024));
}

std::string format_seconds(double seconds) {
    if (!std::isfinite(seconds) || std::abs(seconds) > 1e15) {
        return "unknown";
    }
    // Limits where rounding would reach the next unit ("1000 ms", "60.0 s").
    if (seconds < 0.9995) {
        return fmt::format("{:.0f} ms", seconds * 1e3);
    }
    if (seconds < 59.95) {
        return fmt::format("{:.1f} s", seconds);
    }
    const auto whole = static_cast<std::int64_t>(std::llround(seconds));
    if (whole < 3600) {
        return fmt::format("{} min {:02} s", whole / 60, whole % 60);
    }
    constexpr std::int64_t kTwoDays = 172800;
    if (whole < kTwoDays) {
        return fmt::format("{} h {:02} min", whole / 3600, whole / 60 % 60);
    }
    return fmt::format("{} d {} h", whole / 86400, whole / 3600 % 24);
}

std::string format_count(std::int64_t count) {
    std::string digits = std::to_string(count);
    for (std::ptrdiff_t i = static_cast<std::ptrdiff_t>(digits.size()) - 3; i > (count < 0 ? 1 : 0);
         i -= 3) {
        digits.insert(static_cast<std::size_t>(i), ",");
    }
    return digits;
}

std::string quote(std::string_view text, std::size_t max) {
    std::string out = "\"";
    std::size_t at = 0;
    while (at < text.size()) {
        const std::size_t length = printable_length(text.substr(at));
        const std::size_t taken = std::max<std::size_t>(length, 1);
        if (at + taken > max) {
            return out + "...\"";
        }
        if (length == 0) {
            out += fmt::format("\\x{:02x}", static_cast<unsigned char>(text[at]));
        } else {
            if (text[at] == '"' || text[at] == '\\') {
                out += '\\';
            }
            out += text.substr(at, length);
        }
        at += taken;
    }
    return out + "\"";
}

std::string escape_controls(std::string_view line) {
    std::string out;
    out.reserve(line.size());
    for (std::size_t at = 0; at < line.size();) {
        const std::size_t length = line[at] == '\t' ? 1 : printable_length(line.substr(at));
        if (length == 0) {
            out += fmt::format("\\x{:02x}", static_cast<unsigned char>(line[at]));
        }
        out += line.substr(at, length);
        at += std::max<std::size_t>(length, 1);
    }
    return out;
}

std::string shell_word(std::string_view word) {
    constexpr std::string_view kPlain =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./+,:=@%";
    if (!word.empty() && word.find_first_not_of(kPlain) == std::string_view::npos) {
        return std::string(word);
    }
    std::string quoted = "'";
    for (const char c : word) {
        quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
    }
    return quoted + "'";
}

}  // namespace dflash
