// SPDX-License-Identifier: Apache-2.0
#include <dflash/core/log.hpp>

#include <cstdio>
#include <mutex>
#include <utility>

namespace dflash {
namespace {

struct SinkSlot {
    std::mutex mutex;  // guards: sink
    LogSink sink;
};

SinkSlot& slot() {
    static SinkSlot instance;
    return instance;
}

}  // namespace

LogSink set_log_sink(LogSink sink) {
    SinkSlot& s = slot();
    const std::lock_guard lock(s.mutex);
    return std::exchange(s.sink, std::move(sink));
}

void log_line(LogLevel level, std::string_view line) {
    SinkSlot& s = slot();
    const std::lock_guard lock(s.mutex);
    if (s.sink) {
        s.sink(level, line);
    } else if (level != LogLevel::Debug) {
        const char* prefix = level == LogLevel::Warning ? "warning: "
                             : level == LogLevel::Error ? "error: "
                                                        : "";
        fmt::print(stderr, "{}{}\n", prefix, line);
    }
}

}  // namespace dflash
