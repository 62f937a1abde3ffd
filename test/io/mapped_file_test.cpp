// SPDX-License-Identifier: Apache-2.0
#include "expect_error.hpp"
#include "temp_folder.hpp"

#include <dflash/core/scope.hpp>
#include <dflash/io/mapped_file.hpp>

#include <doctest/doctest.h>
#include <string>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

namespace dflash::io {
namespace {

using test::expect_error;
using test::TempFolder;

TEST_SUITE_BEGIN("io.mapped_file");

TEST_CASE("the bytes of a file are seen, at the same address after a move") {
    const TempFolder folder;
    test::write_text(folder / "a", "hello");
    test::write_text(folder / "b", "other");
    MappedFile first(folder / "a");
    CHECK(first.text() == "hello");
    CHECK(first.bytes().size() == 5);
    const void* address = first.bytes().data();
    MappedFile second(std::move(first));
    CHECK(second.bytes().data() == address);
    MappedFile third(folder / "b");
    third = std::move(second);
    CHECK(third.text() == "hello");
    CHECK(third.path() == folder / "a");
}

TEST_CASE("an empty file has no bytes") {
    const TempFolder folder;
    test::write_text(folder / "a", "");
    const MappedFile file(folder / "a");
    CHECK(file.bytes().empty());
    CHECK(file.text().empty());
    file.advise(MappedFile::Advice::WillNeed);
}

TEST_CASE("advice is taken for any part, and changes nothing") {
    const TempFolder folder;
    test::write_text(folder / "a", std::string(20000, 'x'));
    const MappedFile file(folder / "a");
    for (const auto advice : {MappedFile::Advice::Normal,
                              MappedFile::Advice::Sequential,
                              MappedFile::Advice::Random,
                              MappedFile::Advice::WillNeed,
                              MappedFile::Advice::DontNeed}) {
        file.advise(advice);
        file.advise(advice, 5000, 100);
        file.advise(advice, 19999, 1000000);
        file.advise(advice, 20000);
        file.advise(advice, static_cast<std::size_t>(-1));
    }
    CHECK(file.text() == std::string(20000, 'x'));
}

TEST_CASE("what is no readable file is refused with the kind asked for") {
    const TempFolder folder;
    for (const auto kind : {ErrorKind::Storage, ErrorKind::Config, ErrorKind::Data}) {
        expect_error(kind, {"cannot read", folder / "none", "No such file", "Check the path"}, [&] {
            const MappedFile file(folder / "none", kind);
        });
        expect_error(kind, {folder.path(), "is a folder, expected a file"}, [&] {
            const MappedFile file(folder.path(), kind);
        });
    }
    REQUIRE(::mkfifo((folder / "pipe").c_str(), 0600) == 0);
    expect_error(ErrorKind::Storage, {"no regular file, expected a file"}, [&] {
        const MappedFile file(folder / "pipe");
    });
}

TEST_CASE("what is there and no regular file has a kind of its own") {
    const TempFolder folder;
    const auto map = [](const std::string& path) {
        const MappedFile file(path, ErrorKind::Config, ErrorKind::Data);
    };
    expect_error(ErrorKind::Config, {"cannot read"}, [&] { map(folder / "none"); });
    expect_error(ErrorKind::Data, {"is a folder, expected a file"}, [&] { map(folder.path()); });

    ::sockaddr_un address{};
    address.sun_family = AF_UNIX;
    const std::string path = folder / "socket";
    REQUIRE(path.size() < sizeof address.sun_path);
    path.copy(address.sun_path, path.size());
    const int descriptor = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const ScopeGuard closer([descriptor] { ::close(descriptor); });
    REQUIRE(::bind(descriptor, reinterpret_cast<::sockaddr*>(&address), sizeof address) == 0);
    expect_error(ErrorKind::Data, {"no regular file, expected a file"}, [&] { map(path); });
}

TEST_SUITE_END();

}  // namespace
}  // namespace dflash::io
