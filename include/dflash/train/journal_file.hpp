// SPDX-License-Identifier: Apache-2.0
// A file that only grows, a JSON object a line: what was added survives the end of the process at
// once, that of the machine after some seconds.
#pragma once

#include <dflash/core/error.hpp>
#include <dflash/core/scope.hpp>
#include <dflash/io/json.hpp>
#include <dflash/io/output_file.hpp>

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

namespace dflash::train {

/// One line that was read.
struct JournalLine {
    const io::Json& json;
    std::string_view text;     ///< without its end
    std::int64_t offset;       ///< of its first byte
    const std::string& where;  ///< "path:7"
};

/// read_at() from any thread, all else from one at a time.
class JournalFile : NonCopyable {
  public:
    using Take = std::function<void(const JournalLine&)>;
    /// What is wrong, and the line as in JournalLine::where.
    using Damaged = std::function<void(const Error&, const std::string& where)>;

    /// The whole lines of a file, or of what lies behind `from` in it; 0 if there is no file.
    /// Returns where the first one begins that is not whole. For a line that is no JSON throws
    /// Error{Data}, or calls `damaged` and goes on. Throws Error{Storage} for what is no file, and
    /// what `take` throws.
    static std::int64_t read(const std::string& path,
                             const Take& take,
                             std::int64_t from = 0,
                             const Damaged& damaged = {});

    /// Opens a file whose whole lines end at `size` (read() says it; 0: there may be none) to read
    /// it. Nothing is written before begin_adding(). Throws Error{Storage}.
    JournalFile(const std::string& path, std::int64_t size);

    /// Also calls begin_adding().
    JournalFile(const std::string& path, std::int64_t size, const std::string& header);
    ~JournalFile();

    /// Opens the file to add to it, or makes it with `header` as its first line. What stands behind
    /// its whole lines, a line cut by a crash, is taken off. Throws Error{Storage}.
    void begin_adding(const std::string& header);

    /// Whether begin_adding() was called.
    bool adding() const { return file_.has_value(); }

    /// After begin_adding(). Adds a line, which has its line end; returns where it begins. Throws
    /// Error{Storage}, after which the file is as before.
    std::int64_t append(std::string_view line);

    /// The line that begins there, without its end.
    std::string read_at(std::int64_t offset, std::int64_t bytes) const;

    void sync();
    void close();

    std::int64_t size() const { return size_; }

  private:
    void open_to_read();

    std::string path_;
    std::optional<io::OutputFile> file_;
    int reading_ = -1;  // a descriptor of its own
    std::int64_t size_;
    std::chrono::steady_clock::time_point synced_ = std::chrono::steady_clock::now();
};

}  // namespace dflash::train
