// SPDX-License-Identifier: Apache-2.0
// Files on a disk that fails at every call in turn: what was there stays, what is new is whole or
// not there, and the failure is told.
#include "../io/expect_error.hpp"
#include "../io/temp_folder.hpp"
#include "fault_rules.hpp"

#include <dflash/io/atomic_file.hpp>
#include <dflash/io/checksums.hpp>
#include <dflash/io/output_file.hpp>
#include <dflash/io/safetensors.hpp>

#include <doctest/doctest.h>
#include <fmt/format.h>
#include <functional>
#include <string>

namespace dflash::io {
namespace {

using test::FaultRules;
using test::TempFolder;

/// Lets every call on `folder` fail in turn until `action` succeeds; `check` after each failure.
/// Returns the number of failures.
int fail_each_call(const FaultRules& rules,
                   const std::string& folder,
                   const char* error,
                   const std::function<void()>& action,
                   const std::function<void()>& check) {
    int failures = 0;
    for (int call = 0;; ++call) {
        CAPTURE(call);
        rules.set(fmt::format("any {} {} {} 1", folder, error, call));
        bool failed = false;
        try {
            action();
        } catch (const Error& caught) {
            failed = true;
            CHECK(caught.kind() == ErrorKind::Storage);
            CHECK(std::string(caught.what()).find(folder) != std::string::npos);
        }
        const bool was_reached = rules.count() > call;
        rules.set("");
        check();
        failures += failed ? 1 : 0;
        if (!was_reached) {
            CHECK_FALSE(failed);
            return failures;
        }
        REQUIRE(call < 1000);
    }
}

std::vector<TensorSource> one_tensor(std::size_t bytes) {
    return {{.name = "a",
             .dtype = DType::U8,
             .shape = {static_cast<std::int64_t>(bytes)},
             .write = [bytes](const auto& sink) {
                 const std::vector<std::byte> data(bytes, std::byte{7});
                 sink(std::span(data).first(bytes / 2));
                 sink(std::span(data).subspan(bytes / 2));
             }}};
}

TEST_SUITE_BEGIN("faults.files");

TEST_CASE("short writes and interrupted calls lose nothing") {
    const FaultRules rules;
    const TempFolder folder;
    std::string text;
    for (int i = 0; i < 300; ++i) {
        text += std::to_string(i);
    }
    rules.set(fmt::format("write {0} EINTR 0 3\nwrite {0} short 3 -1\nopen {0} EINTR 0 2",
                          folder.path()));
    write_file_atomically(folder / "a", text);
    CHECK(rules.count() > std::ssize(text));
    const std::string hash = write_safetensors(folder / "b", one_tensor(1000));
    rules.set(fmt::format("read {} EINTR 0 2", folder.path()));
    CHECK(xxh64_of_file(folder / "b", From::Disk) == hash);
    rules.set("");
    CHECK(test::read_text(folder / "a") == text);
    CHECK(SafetensorsFile(folder / "b").at("a").data.size() == 1000);
    CHECK(xxh64_of_file(folder / "b", From::Disk) == hash);
}

TEST_CASE("a file that is replaced stays as it was, whichever call fails") {
    const FaultRules rules;
    for (const char* error : {"ENOSPC", "EIO"}) {
        const TempFolder folder;
        test::write_text(folder / "a", "before");
        bool done = false;
        const int failures = fail_each_call(
            rules,
            folder.path(),
            error,
            [&] {
                done = false;
                write_file_atomically(folder / "a", "after");
                done = true;
            },
            [&] {
                const std::string text = test::read_text(folder / "a");
                CHECK((text == "before" || text == "after"));
                if (done) {
                    CHECK(text == "after");
                }
                CHECK(test::names_in(folder.path()) == std::vector<std::string>{"a"});
                test::write_text(folder / "a", "before");
            });
        CHECK(failures >= 4);  // open, write, synchronise, rename
    }
}

TEST_CASE("a folder is published whole or not at all, whichever call fails") {
    const FaultRules rules;
    const TempFolder folder;
    const auto prepare = [&] {
        std::filesystem::remove_all(folder / "new");
        std::filesystem::remove_all(folder / "made");
        create_folders(folder / "made/inner");
        test::write_text(folder / "made/inner/a", "1");
    };
    prepare();
    const int failures = fail_each_call(
        rules,
        folder.path(),
        "EIO",
        [&] { publish_folder(folder / "made", folder / "new"); },
        [&] {
            const bool published = std::filesystem::exists(folder / "new");
            CHECK(std::filesystem::exists(folder / "made") != published);
            CHECK(test::read_text((published ? folder / "new" : folder / "made") + "/inner/a") ==
                  "1");
            prepare();
        });
    CHECK(failures >= 4);  // the file, two folders, rename, the parent
}

TEST_CASE("a link points to the old or the new, whichever call fails") {
    const FaultRules rules;
    const TempFolder folder;
    replace_symlink(folder / "latest", "old");
    const int failures = fail_each_call(
        rules,
        folder.path(),
        "ENOSPC",
        [&] { replace_symlink(folder / "latest", "new"); },
        [&] {
            const std::string target = std::filesystem::read_symlink(folder / "latest");
            CHECK((target == "old" || target == "new"));
            CHECK(test::names_in(folder.path()) == std::vector<std::string>{"latest"});
            replace_symlink(folder / "latest", "old");
        });
    CHECK(failures >= 3);  // link, rename, the folder
}

TEST_CASE("a tensor file that cannot be written is an error at every call") {
    const FaultRules rules;
    const TempFolder folder;
    for (const char* error : {"ENOSPC", "EIO"}) {
        const int failures = fail_each_call(
            rules,
            folder.path(),
            error,
            [&] { write_safetensors(folder / "a", one_tensor(100)); },
            [] {});
        CHECK(failures >= 5);  // open, header, two pieces, synchronise
    }
}

TEST_CASE("a bit that changes on the way from the disk is noticed") {
    const FaultRules rules;
    const TempFolder folder;
    test::write_text(folder / "a", "something");
    const Checksums checksums = {{"a", xxh64_hex("something")}};
    rules.set(fmt::format("read {} flip 0 1", folder.path()));
    test::expect_error(ErrorKind::Data, {"a is damaged", folder / "a"}, [&] {
        verify_checksums(folder.path(), checksums, From::Disk);
    });
    rules.set(fmt::format("read {} EIO 0 1", folder.path()));
    test::expect_error(ErrorKind::Storage, {"cannot read", folder / "a", "Input/output"}, [&] {
        verify_checksums(folder.path(), checksums, From::Disk);
    });
    rules.set("");
    CHECK_NOTHROW(verify_checksums(folder.path(), checksums, From::Disk));
}

TEST_SUITE_END();

}  // namespace
}  // namespace dflash::io
