// SPDX-License-Identifier: Apache-2.0
#include <dflash/core/scope.hpp>
#include <dflash/io/page_warmer.hpp>

#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <unistd.h>
#include <utility>

namespace dflash::io {

namespace {

constexpr std::size_t kPiece = std::size_t{4} << 20;

void read_through(const std::string& path, std::vector<char>& piece, const std::stop_token& stop) {
    const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (descriptor < 0) {
        return;
    }
    const ScopeGuard closer([descriptor] { ::close(descriptor); });
    while (!stop.stop_requested() && ::read(descriptor, piece.data(), piece.size()) > 0) {
    }
}

void warm(const std::vector<std::string>& paths, const std::stop_token& stop) {
    std::int64_t bytes = 0;
    for (const std::string& path : paths) {
        std::error_code error;
        const std::uintmax_t size = std::filesystem::file_size(path, error);
        bytes += error ? 0 : static_cast<std::int64_t>(size);
    }
    // What does not fit would push out what was read before it.
    if (bytes > available_memory() / 2) {
        return;
    }
    std::vector<char> piece(kPiece);
    for (const std::string& path : paths) {
        read_through(path, piece, stop);
    }
}

}  // namespace

std::int64_t available_memory() {
    std::ifstream info("/proc/meminfo");
    for (std::string line; std::getline(info, line);) {
        if (line.starts_with("MemAvailable:")) {
            return std::stoll(line.substr(13)) * 1024;
        }
    }
    return 0;
}

PageWarmer::PageWarmer(std::vector<std::string> paths)
    : thread_([files = std::move(paths)](const std::stop_token& stop) { warm(files, stop); }) {}

void PageWarmer::wait() {
    if (thread_.joinable()) {
        thread_.join();
    }
}

}  // namespace dflash::io
