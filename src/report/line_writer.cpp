// SPDX-License-Identifier: Apache-2.0
#include "line_writer.hpp"

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

namespace dflash::report {
namespace {

/// A non-blocking descriptor of our own for the pipe or terminal behind `descriptor`; setting
/// O_NONBLOCK on the given one would set it for the shell and for all that share it. Files never
/// block, and what cannot be opened again (sockets, terminals of another user) is used as it is.
int open_again(int descriptor) {
    struct ::stat status {};

    if (::fstat(descriptor, &status) != 0 ||
        !(S_ISFIFO(status.st_mode) || ::isatty(descriptor) != 0)) {
        return descriptor;
    }
    const int own = ::open(fmt::format("/proc/self/fd/{}", descriptor).c_str(),
                           O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    return own < 0 ? descriptor : own;
}

}  // namespace

LineWriter::LineWriter(int descriptor, std::size_t limit)
    : given_(descriptor), descriptor_(open_again(descriptor)), limit_(limit) {
    // A descriptor that is closed now may later be that of some other file.
    struct ::stat status {};

    gone_ = ::fstat(descriptor, &status) != 0;
}

LineWriter::~LineWriter() {
    if (descriptor_ != given_) {
        ::close(descriptor_);
    }
}

LineWriter::Fate LineWriter::write_line(std::string_view line,
                                        std::string_view before,
                                        std::string_view after) {
    if (gone_) {
        return Fate::LeftOut;
    }
    const bool told = show_left_out(before);
    if (told) {
        before = {};
    }
    if (left_out_ > 0 || pending_.size() + before.size() + line.size() + 1 > limit_) {
        ++left_out_;
        return told ? Fate::Kept : Fate::LeftOut;
    }
    const bool whole = write_some();
    pending_ += before;
    pending_ += line;
    pending_ += '\n';
    if (whole) {
        pending_ += after;
    }
    write_some();
    return whole ? Fate::Whole : Fate::Kept;
}

bool LineWriter::write_if_free(std::string_view text) {
    if (left_out_ > 0 || !write_some() || gone_) {
        return false;
    }
    pending_ = text;
    write_some();
    return true;
}

bool LineWriter::show_left_out(std::string_view before) {
    if (left_out_ == 0 || !write_some()) {
        return false;
    }
    pending_ = fmt::format("{}({} lines left out here; console.log has them)\n", before, left_out_);
    left_out_ = 0;
    return true;
}

bool LineWriter::write_some() {
    // A blocking descriptor that is ready takes a little without waiting; pieces stay below what
    // terminals and pipes then have room for.
    constexpr std::size_t kPiece = 256;
    std::size_t done = 0;
    while (done < pending_.size() && !gone_) {
        ::pollfd ready{.fd = descriptor_, .events = POLLOUT, .revents = 0};
        const int count = ::poll(&ready, 1, 0);
        if (count == 0) {
            break;
        }
        if (count < 0 && errno == EINTR) {
            continue;
        }
        const std::size_t size = descriptor_ == given_ ? std::min(kPiece, pending_.size() - done)
                                                       : pending_.size() - done;
        const ::ssize_t written = ::write(descriptor_, pending_.data() + done, size);
        if (written >= 0) {
            done += static_cast<std::size_t>(written);
        } else if (errno == EAGAIN) {
            break;
        } else if (errno != EINTR) {
            gone_ = true;  // EIO, EPIPE, EBADF, a full disk: the log file has everything
        }
    }
    pending_.erase(0, gone_ ? std::string::npos : done);
    return pending_.empty();
}

void LineWriter::flush(std::chrono::milliseconds timeout) {
    const auto deadline = std::chrono::steady_clock::now() + timeout;
    while (!write_some()) {
        const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
            deadline - std::chrono::steady_clock::now());
        if (left.count() <= 0) {
            return;
        }
        ::pollfd ready{.fd = descriptor_, .events = POLLOUT, .revents = 0};
        ::poll(&ready, 1, static_cast<int>(std::min<std::int64_t>(left.count(), 50)));
    }
    show_left_out({});
    write_some();
}

}  // namespace dflash::report
