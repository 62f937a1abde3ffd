// SPDX-License-Identifier: Apache-2.0
#include "expect_error.hpp"
#include "temp_folder.hpp"

#include <dflash/io/atomic_file.hpp>

#include <doctest/doctest.h>
#include <filesystem>
#include <sys/stat.h>

namespace dflash::io {
namespace {

namespace fs = std::filesystem;
using test::expect_error;
using test::names_in;
using test::TempFolder;
using Names = std::vector<std::string>;

TEST_SUITE_BEGIN("io.atomic_file");

TEST_CASE("a file appears with commit, complete, and replaces the former one") {
    const TempFolder folder;
    const std::string path = folder / "status.json";
    test::write_text(path, "old");
    {
        AtomicFile file(path);
        CHECK(fs::path(file.temporary_path()).parent_path() == folder.path());
        file.write("new ");
        file.write(std::as_bytes(std::span("text", 4)));
        CHECK(test::read_text(path) == "old");
        CHECK(names_in(folder.path()).size() == 2);
        file.commit();
        CHECK(file.path() == path);
    }
    CHECK(test::read_text(path) == "new text");
    CHECK(names_in(folder.path()) == Names{"status.json"});
}

TEST_CASE("without commit nothing changes and nothing is left") {
    const TempFolder folder;
    test::write_text(folder / "a", "old");
    {
        AtomicFile file(folder / "a");
        file.write("half");
    }
    CHECK(test::read_text(folder / "a") == "old");
    CHECK(names_in(folder.path()) == Names{"a"});
}

TEST_CASE("two writers of one file do not disturb each other") {
    const TempFolder folder;
    AtomicFile first(folder / "a");
    AtomicFile second(folder / "a");
    first.write("first");
    second.write("second");
    second.commit();
    CHECK(test::read_text(folder / "a") == "second");
    first.commit();
    CHECK(test::read_text(folder / "a") == "first");
    CHECK(names_in(folder.path()) == Names{"a"});
}

TEST_CASE("a file in the working directory is written there") {
    const TempFolder folder;
    const fs::path before = fs::current_path();
    fs::current_path(folder.path());
    write_file_atomically("plain", "x");
    fs::current_path(before);
    CHECK(test::read_text(folder / "plain") == "x");
}

TEST_CASE("failures are storage errors with path and reason, and leave nothing behind") {
    const TempFolder folder;
    expect_error(ErrorKind::Storage, {folder / "no", "No such file"}, [&] {
        write_file_atomically(folder / "no/a", "x");
    });
    test::write_text(folder / "file", "");
    expect_error(ErrorKind::Storage, {"Not a directory"}, [&] {
        write_file_atomically(folder / "file/a", "x");
    });
    fs::create_directory(folder / "taken");
    expect_error(ErrorKind::Storage, {"cannot replace", folder / "taken", "Is a directory"}, [&] {
        write_file_atomically(folder / "taken", "x");
    });
    CHECK(names_in(folder.path()) == Names{"file", "taken"});
}

TEST_CASE("a folder appears by rename") {
    const TempFolder folder;
    create_folders(folder / "tmp/draft");
    test::write_text(folder / "tmp/draft/config.json", "{}");
    test::write_text(folder / "tmp/state", "s");
    fs::create_symlink("nowhere", folder / "tmp/link");
    publish_folder(folder / "tmp", folder / "step-000500");
    CHECK(names_in(folder.path()) == Names{"step-000500"});
    CHECK(test::read_text(folder / "step-000500/draft/config.json") == "{}");
    CHECK(fs::is_symlink(folder / "step-000500/link"));
}

TEST_CASE("a folder does not replace one with content, but an empty one") {
    const TempFolder folder;
    create_folders(folder / "tmp");
    create_folders(folder / "full/x");
    expect_error(ErrorKind::Storage, {"cannot rename", folder / "tmp", folder / "full"}, [&] {
        publish_folder(folder / "tmp", folder / "full");
    });
    CHECK(fs::exists(folder / "tmp"));
    create_folders(folder / "empty");
    publish_folder(folder / "tmp", folder / "empty");
    CHECK_FALSE(fs::exists(folder / "tmp"));
    expect_error(ErrorKind::Storage, {folder / "none", "No such file"}, [&] {
        publish_folder(folder / "none", folder / "x");
    });
}

TEST_CASE("a link is made and replaced") {
    const TempFolder folder;
    replace_symlink(folder / "latest", "step-1");
    replace_symlink(folder / "latest", "step-2");
    CHECK(fs::read_symlink(folder / "latest") == "step-2");
    CHECK(names_in(folder.path()) == Names{"latest"});
    create_folders(folder / "taken");
    expect_error(ErrorKind::Storage, {"cannot replace the link"}, [&] {
        replace_symlink(folder / "taken", "x");
    });
    expect_error(ErrorKind::Storage, {"cannot create the link"}, [&] {
        replace_symlink(folder / "no/latest", "x");
    });
    CHECK(names_in(folder.path()) == Names{"latest", "taken"});
}

TEST_CASE("folders are created with their parents") {
    const TempFolder folder;
    create_folders(folder / "a/b/c");
    create_folders(folder / "a/b/c");
    CHECK(fs::is_directory(folder / "a/b/c"));
    test::write_text(folder / "file", "");
    expect_error(ErrorKind::Storage, {"cannot create the folder", folder / "file/x"}, [&] {
        create_folders(folder / "file/x");
    });
    expect_error(ErrorKind::Storage, {folder / "none"}, [&] { sync_folder(folder / "none"); });
}

TEST_SUITE_END();

}  // namespace
}  // namespace dflash::io
