// SPDX-License-Identifier: Apache-2.0
// Writing to a terminal or pipe without ever waiting for it.
#pragma once

#include <dflash/core/scope.hpp>

#include <chrono>
#include <cstddef>
#include <string>
#include <string_view>

namespace dflash::report {

/// Lines on their way to a descriptor that may be slow, stopped or gone. Not thread-safe; throws
/// nothing but std::bad_alloc.
class LineWriter : NonCopyable {
  public:
    /// `descriptor` is not owned. `limit`: bytes kept while the other side takes nothing.
    explicit LineWriter(int descriptor, std::size_t limit = 256 * 1024);
    ~LineWriter();

    enum class Fate {
        LeftOut,  ///< counted; the count is shown when lines go through again
        Kept,     ///< `before`, and the line or a count, are, or will be, written; `after` is not
        Whole,    ///< all three are, or will be, written
    };

    /// Writes what can be written at once and keeps the rest, up to the limit. `before` goes in
    /// front of the line, `after` behind it, but only if nothing waits to be written in front of
    /// both: it is what may as well be left away.
    Fate write_line(std::string_view line,
                    std::string_view before = {},
                    std::string_view after = {});

    /// Writes the text, unless something waits to be written; returns whether it did.
    bool write_if_free(std::string_view text);

    /// Waits until everything is written, at most this long.
    void flush(std::chrono::milliseconds timeout);

    /// The other side has hung up (or was never open); nothing is written any more.
    bool is_gone() const { return gone_; }

  private:
    /// Writes until nothing is left or the other side is full; false in the second case.
    bool write_some();

    /// Says how many lines were left out, once nothing waits in front of the message; returns
    /// whether it did.
    bool show_left_out(std::string_view before);

    int given_;       // as the program was started with
    int descriptor_;  // a non-blocking one for the same terminal or pipe, or given_
    std::size_t limit_;
    std::string pending_;
    std::size_t left_out_ = 0;
    bool gone_ = false;
};

}  // namespace dflash::report
