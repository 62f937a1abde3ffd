// SPDX-License-Identifier: Apache-2.0
#include "expect_error.hpp"
#include "temp_folder.hpp"

#include <dflash/io/folder_lock.hpp>

#include <atomic>
#include <doctest/doctest.h>
#include <optional>
#include <string>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

namespace dflash::io {
namespace {

using test::expect_error;
using test::TempFolder;

/// Whether another process can have the folder now.
bool free_for_another_process(const std::string& folder) {
    const ::pid_t child = ::fork();
    if (child == 0) {
        try {
            const FolderLock lock(folder);
            ::_exit(0);
        } catch (const Error&) {
            ::_exit(1);
        }
    }
    int status = 0;
    REQUIRE(::waitpid(child, &status, 0) == child);
    REQUIRE(WIFEXITED(status));
    return WEXITSTATUS(status) == 0;
}

TEST_SUITE("io.folder_lock") {
    TEST_CASE("a folder is held by one process at a time") {
        const TempFolder folder;
        const std::string& path = folder.path();
        CHECK(free_for_another_process(path));
        std::optional<FolderLock> lock;
        lock.emplace(path);
        CHECK_FALSE(free_for_another_process(path));
        CHECK(FolderLock::is_held(path));
        expect_error(
            ErrorKind::Config,
            {"another process", std::to_string(::getpid()), "is writing to the folder", path},
            [&] { const FolderLock second(path); });
        lock.reset();
        CHECK(free_for_another_process(path));
    }

    TEST_CASE("asking whether a folder is held does not keep anybody from taking it") {
        const TempFolder folder;
        CHECK_FALSE(FolderLock::is_held(folder.path()));
        CHECK_FALSE(FolderLock::is_held(folder / "missing"));
        std::atomic<bool> done = false;
        std::thread asker([&] {
            while (!done) {
                FolderLock::is_held(folder.path());
            }
        });
        for (int i = 0; i < 200; ++i) {
            const FolderLock lock(folder.path());
            CHECK(FolderLock::is_held(folder.path()));
        }
        done = true;
        asker.join();
    }

    TEST_CASE("a folder that is not there cannot be held") {
        const TempFolder folder;
        expect_error(ErrorKind::Storage, {"cannot open the folder", "Check the path"}, [&] {
            const FolderLock lock(folder / "missing");
        });
    }
}

}  // namespace
}  // namespace dflash::io
