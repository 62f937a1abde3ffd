// SPDX-License-Identifier: Apache-2.0
#include "captured_run.hpp"

#include <dflash/io/json.hpp>

#include <doctest/doctest.h>
#include <filesystem>
#include <fstream>
#include <string>
#include <unistd.h>
#include <utility>
#include <vector>

namespace dflash::cli {
namespace {

namespace fs = std::filesystem;

std::string fresh_folder() {
    const fs::path folder =
        fs::temp_directory_path() / ("dflash-data-command-" + std::to_string(::getpid()));
    fs::remove_all(folder);
    fs::create_directories(folder);
    return folder.string();
}

Outcome run_data(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), "data");
    return captured_run(std::move(arguments));
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
        const Outcome outcome = run_data(tiny("test/golden/tiny-data.jsonl"));
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
        const Outcome outcome = run_data(tiny(path, {"--json", "--samples", "1"}));
        CHECK(outcome.code == 3);
        const io::Json json = io::Json::parse(outcome.output, "output");
        CHECK(json.find("rows")->to_integer() == 3);
        CHECK(json.find("usable")->to_integer() == 1);
        CHECK(json.find("without_response")->to_integer() == 1);
        CHECK(json.find("samples")->items().size() == 1);
        CHECK(json.find("warnings")->items().at(0).find("code")->as_string() == "no_response");
        const Outcome text = run_data(tiny(path));
        CHECK(text.code == 3);
        CHECK(has(text.output, "A run would refuse this data: 2 of 3 rows refused"));
        CHECK(has(text.output, "refused   bad_json: 1 row"));
        CHECK(has(text.output, path + ":3:"));
        fs::remove_all(folder);
    }

    TEST_CASE("data: a file that is not there is exit 2, one without rows exit 3") {
        const std::string folder = fresh_folder();
        std::ofstream(folder + "/empty.jsonl") << "";
        CHECK(run_data(tiny(folder + "/missing.jsonl")).code == 2);
        CHECK(run_data(tiny(folder + "/*.parquet")).code == 2);
        CHECK(run_data(tiny(folder + "/empty.jsonl")).code == 3);
        CHECK(run_data({"--jsn"}).code == 2);
        fs::remove_all(folder);
    }
}

}  // namespace
}  // namespace dflash::cli
