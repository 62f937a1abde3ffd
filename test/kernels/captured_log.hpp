// SPDX-License-Identifier: Apache-2.0
// What the program logs while a test runs.
#pragma once

#include <dflash/core/log.hpp>
#include <dflash/core/scope.hpp>

#include <mutex>
#include <string>
#include <string_view>
#include <vector>

namespace dflash::kernels {

class CapturedLog : NonCopyable {
  public:
    CapturedLog()
        : former_(set_log_sink([this](LogLevel level, std::string_view line) {
              const std::lock_guard lock(mutex_);
              (level == LogLevel::Warning ? warnings_ : others_).emplace_back(line);
          })) {}

    ~CapturedLog() { set_log_sink(former_); }

    std::vector<std::string> warnings() const {
        const std::lock_guard lock(mutex_);
        return warnings_;
    }

    std::vector<std::string> others() const {
        const std::lock_guard lock(mutex_);
        return others_;
    }

  private:
    mutable std::mutex mutex_;  // guards: warnings_, others_
    std::vector<std::string> warnings_;
    std::vector<std::string> others_;
    LogSink former_;
};

}  // namespace dflash::kernels
