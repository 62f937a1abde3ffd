// SPDX-License-Identifier: Apache-2.0
// metrics.jsonl: one JSON object per step on a line of its own.
#pragma once

#include <dflash/io/json.hpp>
#include <dflash/io/output_file.hpp>

#include <cstdint>
#include <functional>
#include <string>
#include <utility>

namespace dflash::report {

/// Appends objects to a file, each line with one write, so that a process killed at any moment
/// leaves whole lines and at most one torn at the end. Not thread-safe.
class MetricsLog {
  public:
    /// Opens the file, new or of the run that is resumed after `last_step` (0 for a new run). Of an
    /// existing file only whole lines that are objects with an integer "step" of at most
    /// `last_step` stay; the others are cut by an atomic rewrite and counted in the log. Throws
    /// Error{Storage}.
    MetricsLog(std::string path, std::int64_t last_step);
    ~MetricsLog();  ///< finish()
    MetricsLog(const MetricsLog&) = delete;
    MetricsLog& operator=(const MetricsLog&) = delete;

    /// Appends an object, which must have an integer "step". A file that cannot be written is a
    /// warning; its lines (at most 1 MiB of them) are kept and written with the next one.
    void write(const io::Json& object);

    /// The last try for lines that wait; those that cannot be written are lost, and counted in the
    /// log.
    void finish();

    /// Gets every line (without its end) that write() is called with, whether the file takes it or
    /// not.
    void set_listener(std::function<void(const std::string& line)> listener) {
        listener_ = std::move(listener);
    }

    const std::string& path() const { return file_.path(); }

  private:
    bool write_pending();

    io::OutputFile file_;
    std::function<void(const std::string&)> listener_;
    std::int64_t size_ = 0;     // bytes of whole lines in the file
    std::string pending_;       // whole lines not written yet
    std::int64_t waiting_ = 0;  // how many they are
    bool failing_ = false;      // the last write failed: warned of once
    std::int64_t dropped_ = 0;  // lines given up while failing
};

}  // namespace dflash::report
