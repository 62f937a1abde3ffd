// SPDX-License-Identifier: Apache-2.0
// The lines that code under test logs, instead of showing them.
#pragma once

#include <dflash/core/log.hpp>
#include <dflash/core/scope.hpp>

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace dflash::test {

/// Collects the lines of the log while it lives.
class CaughtLog : NonCopyable {
  public:
    CaughtLog()
        : former_(set_log_sink([this](LogLevel level, std::string_view line) {
              (level == LogLevel::Warning ? warnings_ : others_).emplace_back(line);
          })) {}

    ~CaughtLog() { set_log_sink(std::move(former_)); }

    const std::vector<std::string>& warnings() const { return warnings_; }

    const std::vector<std::string>& others() const { return others_; }

    /// Whether one of the warnings holds a text.
    bool warned(std::string_view text) const {
        for (const std::string& line : warnings_) {
            if (line.find(text) != std::string::npos) {
                return true;
            }
        }
        return false;
    }

  private:
    std::vector<std::string> warnings_;
    std::vector<std::string> others_;
    LogSink former_;
};

}  // namespace dflash::test
