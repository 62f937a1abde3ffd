// SPDX-License-Identifier: Apache-2.0
// Messages of the program. The modules log; `report` decides where lines go (terminal,
// console.log). Before a sink is set, and in tests, lines go to standard error.
#pragma once

#include <fmt/format.h>
#include <functional>
#include <string>
#include <string_view>

namespace dflash {

enum class LogLevel { Debug, Info, Warning, Error };

/// Receives one line without a line end. Called from any thread, one call at a time.
using LogSink = std::function<void(LogLevel level, std::string_view line)>;

/// Replaces the sink; a null sink restores the default. Returns the former one.
LogSink set_log_sink(LogSink sink);

/// Hands one line to the sink.
void log_line(LogLevel level, std::string_view line);

template <class... Args>
void log_info(fmt::format_string<Args...> format, Args&&... args) {
    log_line(LogLevel::Info, fmt::format(format, std::forward<Args>(args)...));
}

template <class... Args>
void log_warning(fmt::format_string<Args...> format, Args&&... args) {
    log_line(LogLevel::Warning, fmt::format(format, std::forward<Args>(args)...));
}

template <class... Args>
void log_debug(fmt::format_string<Args...> format, Args&&... args) {
    log_line(LogLevel::Debug, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace dflash
