// SPDX-License-Identifier: Apache-2.0
#include <dflash/cli/run.hpp>
#include <dflash/core/scope.hpp>
#include <dflash/io/json.hpp>

#include <cstdio>
#include <doctest/doctest.h>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <unistd.h>
#include <vector>

namespace dflash::cli {
namespace {

namespace fs = std::filesystem;

struct Outcome {
    int code = -1;
    std::string output;
};

std::string fresh_folder() {
    const fs::path folder =
        fs::temp_directory_path() / ("dflash-data-command-" + std::to_string(::getpid()));
    fs::remove_all(folder);
    fs::create_directories(folder);
    return folder.string();
}

// Standard output and standard error go to a file while the command runs.
Outcome run_with(std::vector<std::string> arguments, const std::string& folder) {
    arguments.insert(arguments.begin(), {"dflash", "data"});
    std::vector<char*> pointers;
    for (std::string& argument : arguments) {
        pointers.push_back(argument.data());
    }
    const std::string path = folder + "/output";
    Outcome outcome;
    {
        std::fflush(stdout);
        const int saved = ::dup(STDOUT_FILENO);
        const int saved_errors = ::dup(STDERR_FILENO);
        REQUIRE(std::freopen(path.c_str(), "w", stdout) != nullptr);
        ::dup2(STDOUT_FILENO, STDERR_FILENO);
        const ScopeGuard restore([saved, saved_errors] {
            std::fflush(stdout);
            ::dup2(saved, STDOUT_FILENO);
            ::dup2(saved_errors, STDERR_FILENO);
            ::close(saved);
            ::close(saved_errors);
        });
        outcome.code = run(static_cast<int>(pointers.size()), pointers.data());
    }
    std::ostringstream text;
    text << std::ifstream(path).rdbuf();
    outcome.output = text.str();
    return outcome;
}

std::vector<std::string> tiny(const std::string& data, std::vector<std::string> more = {}) {
    more.insert(
        more.begin(),
        {"--config", "configs/tiny-cpu.toml", "--data", data, "--set", "cache.dir=/nonexistent"});
    return more;
}

bool has(const std::string& text, std::string_view part) {
    return text.find(part) != std::string::npos;
}

TEST_SUITE("cli.data_command") {
    TEST_CASE("data: good data is exit 0, with figures and the first samples") {
        const std::string folder = fresh_folder();
        const Outcome outcome = run_with(tiny("test/golden/tiny-data.jsonl"), folder);
        CAPTURE(outcome.output);
        CHECK(outcome.code == 0);
        CHECK(has(outcome.output, "Is my data all right? "));
        CHECK(has(outcome.output, "shape     messages: "));
        CHECK(has(outcome.output, "trained tokens that these predict"));
        CHECK(has(outcome.output, "sample    test/golden/tiny-data.jsonl:1: "));
        CHECK(has(outcome.output, ">>>3 + 1 = 4. So the answer is 4.<|im_end|><<<"));
        CHECK(has(outcome.output, "sample    test/golden/tiny-data.jsonl:3: "));
        CHECK_FALSE(has(outcome.output, "sample    test/golden/tiny-data.jsonl:4: "));
        fs::remove_all(folder);
    }

    TEST_CASE("data: --json is one JSON value, also for data that a run would refuse") {
        const std::string folder = fresh_folder();
        const std::string path = folder + "/rows.jsonl";
        std::ofstream(path) << R"({"prompt": "a", "response": "some answer"})"
                               "\n"
                               R"({"prompt": "only a question"})"
                               "\n{\n";
        const Outcome outcome = run_with(tiny(path, {"--json", "--samples", "1"}), folder);
        CHECK(outcome.code == 3);
        const io::Json json = io::Json::parse(outcome.output, "output");
        CHECK(json.find("rows")->to_integer() == 3);
        CHECK(json.find("usable")->to_integer() == 1);
        CHECK(json.find("without_response")->to_integer() == 1);
        CHECK(json.find("samples")->items().size() == 1);
        CHECK(json.find("warnings")->items().at(0).find("code")->as_string() == "no_response");
        const Outcome text = run_with(tiny(path), folder);
        CHECK(text.code == 3);
        CHECK(has(text.output, "A run would refuse this data: 2 of 3 rows refused"));
        CHECK(has(text.output, "refused   bad_json: 1 row"));
        CHECK(has(text.output, path + ":3:"));
        fs::remove_all(folder);
    }

    TEST_CASE("data: a file that is not there is exit 2, one without rows exit 3") {
        const std::string folder = fresh_folder();
        std::ofstream(folder + "/empty.jsonl") << "";
        CHECK(run_with(tiny(folder + "/missing.jsonl"), folder).code == 2);
        CHECK(run_with(tiny(folder + "/*.parquet"), folder).code == 2);
        CHECK(run_with(tiny(folder + "/empty.jsonl"), folder).code == 3);
        CHECK(run_with({"--jsn"}, folder).code == 2);
        fs::remove_all(folder);
    }
}

}  // namespace
}  // namespace dflash::cli
