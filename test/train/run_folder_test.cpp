// SPDX-License-Identifier: Apache-2.0
#include <dflash/core/error.hpp>
#include <dflash/core/scope.hpp>
#include <dflash/train/run_folder.hpp>

#include <cstdlib>
#include <doctest/doctest.h>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

namespace dflash::train {
namespace {
namespace fs = std::filesystem;

/// An empty working directory, for as long as it lives.
class InEmptyFolder : NonCopyable {
  public:
    InEmptyFolder() {
        std::string name = (fs::temp_directory_path() / "dflash-run-folder-XXXXXX").string();
        folder_ = ::mkdtemp(name.data());
        fs::current_path(folder_);
    }

    ~InEmptyFolder() {
        std::error_code ignored;
        fs::current_path(before_, ignored);
        fs::remove_all(folder_, ignored);
    }

  private:
    fs::path before_ = fs::current_path();
    fs::path folder_;
};

TEST_SUITE("train.run_folder") {
    TEST_CASE("runs started in one minute get folders of their own") {
        const InEmptyFolder here;
        const std::string first = new_run_folder({}, "tiny");
        CHECK(first.rfind("runs/tiny-", 0) == 0);
        create_run_folder(first);
        CHECK(fs::is_empty(first));
        std::ofstream(first + "/metrics.jsonl") << "{}\n";
        const std::string second = new_run_folder({}, "tiny");
        CHECK(second != first);
        create_run_folder(second);
        std::ofstream(second + "/metrics.jsonl") << "{}\n";
        const std::string third = new_run_folder({}, "tiny");
        CHECK((third != first && third != second));
    }

    TEST_CASE("to see whether a run's folder can be written touches none of its files") {
        const InEmptyFolder here;
        fs::create_directory("mine");
        std::ofstream("mine/config.toml") << "old";
        const auto before = fs::last_write_time("mine/config.toml");
        create_run_folder("mine");
        std::string text;
        std::ifstream("mine/config.toml") >> text;
        CHECK(text == "old");
        CHECK(fs::last_write_time("mine/config.toml") == before);
        CHECK(std::distance(fs::directory_iterator("mine"), fs::directory_iterator()) == 1);
    }

    TEST_CASE("a folder that was asked for must be new or empty") {
        const InEmptyFolder here;
        RunSettings settings;
        settings.output = "mine";
        CHECK(new_run_folder(settings, "tiny") == "mine");
        fs::create_directory("mine");
        CHECK(new_run_folder(settings, "tiny") == "mine");
        std::ofstream("mine/notes.txt") << "kept\n";
        CHECK_THROWS_WITH_AS(
            new_run_folder(settings, "tiny"), doctest::Contains("--resume mine"), Error);
        settings.output = "mine/notes.txt";
        CHECK_THROWS_AS(new_run_folder(settings, "tiny"), Error);
    }
}

}  // namespace
}  // namespace dflash::train
