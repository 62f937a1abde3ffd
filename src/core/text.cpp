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

}  // namespace

std::optional<std::string> nearest_name(std::string_view name,
                                        std::span<const std::string> candidates) {
    std::optional<std::string> best;
    std::size_t best_distance = std::max<std::size_t>(2, name.size() / 3) + 1;
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
    if (size < 1024.0 * 1024) {
        return fmt::format("{:.1f} KiB", value / 1024);
    }
    if (size < 1024.0 * 1024 * 1024) {
        return fmt::format("{:.1f} MiB", value / (1024.0 * 1024));
    }
    return fmt::format("{:.2f} GiB", value / (1024.0 * 1024 * 1024));
}

std::string format_seconds(double seconds) {
    if (!std::isfinite(seconds)) {
        return "unknown";
    }
    if (seconds < 1) {
        return fmt::format("{:.0f} ms", seconds * 1e3);
    }
    if (seconds < 60) {
        return fmt::format("{:.1f} s", seconds);
    }
    const auto whole = static_cast<std::int64_t>(std::llround(seconds));
    if (whole < 3600) {
        return fmt::format("{} min {:02} s", whole / 60, whole % 60);
    }
    if (whole < 48 * 3600) {
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
    for (const char c : text.substr(0, max)) {
        const auto byte = static_cast<unsigned char>(c);
        if (c == '"' || c == '\\') {
            out += '\\';
            out += c;
        } else if (byte < 0x20 || byte == 0x7f) {
            out += fmt::format("\\x{:02x}", byte);
        } else {
            out += c;
        }
    }
    // A cut inside a UTF-8 sequence would leave half a character.
    if (text.size() > max) {
        while (!out.empty() && (static_cast<unsigned char>(out.back()) & 0xC0) == 0x80) {
            out.pop_back();
        }
        if (!out.empty() && (static_cast<unsigned char>(out.back()) & 0xC0) == 0xC0) {
            out.pop_back();
        }
        return out + "...\"";
    }
    return out + "\"";
}

}  // namespace dflash
