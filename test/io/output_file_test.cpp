// SPDX-License-Identifier: Apache-2.0
#include "expect_error.hpp"
#include "file_size_limit.hpp"
#include "temp_folder.hpp"

#include <dflash/io/output_file.hpp>
#include <dflash/io/storage_error.hpp>

#include <cerrno>
#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

namespace dflash::io {
namespace {

using test::expect_error;
using test::TempFolder;

TEST_SUITE_BEGIN("io.output_file");

TEST_CASE("the modes empty, refuse or continue a file") {
    const TempFolder folder;
    const std::string path = folder / "a";
    test::write_text(path, "old");
    {
        OutputFile file(path, OutputFile::Mode::Append);
        file.write(" more");
        file.sync();
        file.close();
    }
    CHECK(test::read_text(path) == "old more");
    OutputFile(path, OutputFile::Mode::Create).write("new");
    CHECK(test::read_text(path) == "new");
    expect_error(ErrorKind::Storage, {"cannot open for writing", path, "File exists"}, [&] {
        const OutputFile file(path, OutputFile::Mode::CreateNew);
    });
}

TEST_CASE("a named pipe is refused at once, with and without a reader") {
    const TempFolder folder;
    const std::string path = folder / "pipe";
    REQUIRE(::mkfifo(path.c_str(), 0600) == 0);
    expect_error(ErrorKind::Storage, {"cannot open for writing", path}, [&] {
        const OutputFile file(path, OutputFile::Mode::Append);
    });
    const int reader = ::open(path.c_str(), O_RDONLY | O_NONBLOCK);
    REQUIRE(reader >= 0);
    expect_error(ErrorKind::Storage, {"no regular file", path}, [&] {
        const OutputFile file(path, OutputFile::Mode::Append);
    });
    ::close(reader);
}

TEST_CASE("a file goes on where it was cut") {
    const TempFolder folder;
    for (const auto mode : {OutputFile::Mode::Create, OutputFile::Mode::Append}) {
        OutputFile file(folder / "a", mode);
        file.truncate(0);
        file.write("0123456789");
        file.truncate(4);
        file.write("x");
        CHECK(test::read_text(folder / "a") == "0123x");
    }
}

TEST_CASE("a moved file is written by its new owner") {
    const TempFolder folder;
    OutputFile first(folder / "a", OutputFile::Mode::Create);
    OutputFile second(std::move(first));
    second.write("1");
    OutputFile third(folder / "b", OutputFile::Mode::Create);
    third = std::move(second);
    third.write("2");
    third.close();
    CHECK(test::read_text(folder / "a") == "12");
    CHECK(third.path() == folder / "a");
    expect_error(ErrorKind::Internal, {"after it was closed"}, [&] { third.write("3"); });
    expect_error(ErrorKind::Internal, {"after it was closed"}, [&] { third.sync(); });
}

TEST_CASE("a full disk is a storage error with the free bytes and what to do") {
    OutputFile full("/dev/full", OutputFile::Mode::Create);
    expect_error(
        ErrorKind::Storage,
        {"cannot write /dev/full", "No space left on device", "bytes free", "Free some space"},
        [&] { full.write("x"); });
}

TEST_CASE("a write that ends half-way is a storage error") {
    const TempFolder folder;
    OutputFile file(folder / "a", OutputFile::Mode::Create);
    {
        const test::FileSizeLimit limit(4);
        expect_error(ErrorKind::Storage, {folder / "a", "File too large"}, [&] {
            file.write("0123456789");
        });
    }
    CHECK(test::read_text(folder / "a") == "0123");
}

TEST_CASE("errors of system calls name path, reason, and a remedy where one is known") {
    const std::pair<int, const char*> cases[] = {
        {ENOSPC, "Free some space"},
        {EDQUOT, "choose another folder"},
        {EROFS, "read-only"},
        {EACCES, "permissions"},
        {EMFILE, "ulimit -n"},
        {EIO, "Input/output error"},
    };
    for (const auto& [number, part] : cases) {
        CAPTURE(number);
        const Error error = storage_error("cannot write", "/tmp/no/such/file", number);
        CHECK(error.kind() == ErrorKind::Storage);
        CHECK(error.parts().where == "/tmp/no/such/file");
        CHECK(std::string(error.what()).find(part) != std::string::npos);
        const bool says_free = error.parts().cause.find("bytes free") != std::string::npos;
        CHECK(says_free == (number == ENOSPC || number == EDQUOT));
    }
    CHECK(storage_error("cannot read", "x", ENOENT, ErrorKind::Config).kind() == ErrorKind::Config);
}

TEST_SUITE_END();

}  // namespace
}  // namespace dflash::io
