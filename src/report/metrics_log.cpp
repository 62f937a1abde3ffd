// SPDX-License-Identifier: Apache-2.0
#include <dflash/core/check.hpp>
#include <dflash/core/log.hpp>
#include <dflash/io/atomic_file.hpp>
#include <dflash/io/jsonl.hpp>
#include <dflash/report/metrics_log.hpp>

#include <filesystem>
#include <optional>
#include <utility>

namespace dflash::report {
namespace {

constexpr std::size_t kMaxPending = 1 << 20;

std::optional<std::int64_t> step_of(const io::Json& object) {
    const io::Json* step = object.find("step");
    return step != nullptr && step->is_number() ? step->to_integer() : std::nullopt;
}

/// Whether a line of an existing file stays. A crash of the machine can leave anything in the last
/// lines, so nothing is taken on trust.
bool stays(std::string_view line, const std::string& place, std::int64_t last_step) {
    try {
        const auto step = step_of(io::Json::parse(line, place));
        return step && *step <= last_step;
    } catch (const io::JsonError&) {
        return false;
    }
}

/// Cuts an existing file to the lines that stay; returns the path.
std::string prepare(std::string path, std::int64_t last_step) {
    std::error_code ignored;
    if (!std::filesystem::exists(path, ignored)) {
        return path;
    }
    std::string kept;
    std::int64_t cut = 0;
    {
        const io::JsonLines lines(path);
        for (std::int64_t number = 1; number <= lines.size(); ++number) {
            const std::string_view text = lines.line(number).text;
            const bool is_whole = number < lines.size() || lines.ends_in_newline();
            if (is_whole && stays(text, lines.place(number), last_step)) {
                kept += text;
                kept += '\n';
            } else {
                ++cut;
            }
        }
        if (kept == lines.bytes()) {
            return path;
        }
    }
    io::write_file_atomically(path, kept);
    log_info("{}: {} lines cut (after step {}, or torn)", path, cut, last_step);
    return path;
}

}  // namespace

MetricsLog::MetricsLog(std::string path, std::int64_t last_step)
    : file_(prepare(std::move(path), last_step), io::OutputFile::Mode::Append),
      size_(static_cast<std::int64_t>(std::filesystem::file_size(file_.path()))) {}

void MetricsLog::write(const io::Json& object) {
    DFLASH_CHECK(
        step_of(object).has_value(), "a line of metrics without a step: {}", object.dump());
    const std::string line = object.dump();
    if (listener_) {
        listener_(line);
    }
    if (pending_.size() >= kMaxPending) {
        write_pending();  // there may be room again
    }
    if (pending_.size() < kMaxPending) {
        pending_ += line;
        pending_ += '\n';
        ++waiting_;
    } else {
        ++dropped_;
    }
    write_pending();
}

bool MetricsLog::write_pending() {
    try {
        if (failing_) {
            file_.truncate(size_);
        }
        file_.write(pending_);
    } catch (const Error& error) {
        if (!std::exchange(failing_, true)) {
            log_warning("{} The lines are kept and written later", error.what());
        }
        return false;
    }
    size_ += static_cast<std::int64_t>(pending_.size());
    pending_.clear();
    waiting_ = 0;
    if (std::exchange(failing_, false)) {
        log_warning(
            "{} is written again; {} lines were lost", file_.path(), std::exchange(dropped_, 0));
    }
    return true;
}

void MetricsLog::finish() {
    if (!pending_.empty() && !write_pending()) {
        log_warning("{} could not be written to the end: {} lines were lost",
                    file_.path(),
                    waiting_ + dropped_);
        try {
            file_.truncate(size_);
        } catch (const Error&) {  // the last line stays torn, which a resume knows to cut
        }
        pending_.clear();
        waiting_ = 0;
        dropped_ = 0;
    }
}

MetricsLog::~MetricsLog() {
    try {
        finish();
    } catch (...) {  // a destructor does not throw; there is nobody left to tell
    }
}

}  // namespace dflash::report
