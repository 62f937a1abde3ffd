// SPDX-License-Identifier: Apache-2.0
// Text for people: lists, nearest names, sizes and times.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace dflash {

/// The candidate with the smallest edit distance to `name`, if it is near enough to be a likely
/// typing error.
std::optional<std::string> nearest_name(std::string_view name,
                                        std::span<const std::string> candidates);

/// "1.21 GiB", "640 KiB", "12 B".
std::string format_bytes(std::int64_t bytes);

/// "850 ms", "12.3 s", "4 min 10 s", "3 h 05 min", "2 d 4 h".
std::string format_seconds(double seconds);

/// "1,234,567".
std::string format_count(std::int64_t count);

/// Printable form of a piece of foreign text for a message: control characters escaped, cut to
/// `max` bytes.
std::string quote(std::string_view text, std::size_t max = 80);

/// A line for a terminal: control characters (all of C0 but the tab, DEL and C1), which it would
/// obey, and bytes that are not UTF-8 become "\\x1b". Everything else stays as it is.
std::string escape_controls(std::string_view line);

/// A word as a POSIX shell takes it: as it is where that is safe, else in single quotes.
std::string shell_word(std::string_view word);

}  // namespace dflash
