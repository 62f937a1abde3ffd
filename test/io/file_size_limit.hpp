// SPDX-License-Identifier: Apache-2.0
// A disk that is full, for tests: the largest size of files that this process may write.
#pragma once

#include <dflash/core/scope.hpp>

#include <csignal>
#include <doctest/doctest.h>
#include <sys/resource.h>

namespace dflash::test {

/// While it lives, files of this process cannot grow beyond `bytes`: writes fail with EFBIG, after
/// a part of them, as on a full disk.
class FileSizeLimit : NonCopyable {
  public:
    explicit FileSizeLimit(::rlim_t bytes) : former_handler_(std::signal(SIGXFSZ, SIG_IGN)) {
        REQUIRE(::getrlimit(RLIMIT_FSIZE, &former_) == 0);
        const ::rlimit limit{bytes, former_.rlim_max};
        REQUIRE(::setrlimit(RLIMIT_FSIZE, &limit) == 0);
    }

    ~FileSizeLimit() {
        ::setrlimit(RLIMIT_FSIZE, &former_);
        std::signal(SIGXFSZ, former_handler_);
    }

  private:
    ::rlimit former_{};
    void (*former_handler_)(int);
};

}  // namespace dflash::test
