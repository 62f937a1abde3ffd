// SPDX-License-Identifier: Apache-2.0
// dflash generate, and training on prompts, killed at random moments: nothing that was answered is
// lost, and what comes out is that of a run that was never killed.
#include "process.hpp"

#include <algorithm>
#include <chrono>
#include <csignal>
#include <doctest/doctest.h>
#include <filesystem>
#include <fstream>
#include <random>
#include <sstream>
#include <string>
#include <vector>

namespace dflash::cli {
namespace {

namespace fs = std::filesystem;

std::string bytes_of(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    std::ostringstream bytes;
    bytes << file.rdbuf();
    return bytes.str();
}

std::int64_t whole_lines(const std::string& path) {
    const std::string bytes = bytes_of(path);
    return std::count(bytes.begin(), bytes.end(), '\n');
}

std::vector<std::string> arguments(const std::string& folder, const std::string& output) {
    return {"generate",
            "--target",
            "test/golden/targets/T1",
            "--data",
            folder + "/rows.jsonl",
            "--output",
            output,
            "--gpus",
            "cpu:2",
            "--max-new-tokens",
            "60",
            "--temperature",
            "1.1",
            "--batch",
            "4",
            "--set",
            "report.line_every=1ms"};
}

void write_prompts(const std::string& path, int count) {
    std::ofstream rows(path);
    for (int i = 0; i < count; ++i) {
        rows << R"({"id": )" << i << R"(, "prompt": "Tell me about )" << i << "\"}\n";
    }
}

}  // namespace

TEST_SUITE("process.generate") {
    TEST_CASE("generate: killed again and again it ends like one that was never killed") {
        const std::string folder = fresh_folder("generate");
        fs::create_directories(folder);
        write_prompts(folder + "/rows.jsonl", 300);
        const std::string whole = folder + "/whole.jsonl";
        const auto started = std::chrono::steady_clock::now();
        Process reference(arguments(folder, whole), /*in_terminal=*/false);
        const int reference_code = reference.wait(240);
        CAPTURE(reference.output());
        REQUIRE(reference_code == 0);
        const double whole_s =
            std::chrono::duration<double>(std::chrono::steady_clock::now() - started).count();

        const std::string output = folder + "/killed.jsonl";
        const std::string journal = output + ".part/answers.jsonl";
        std::mt19937 random(20260202);
        int kills = 0;
        std::int64_t held = 0;
        while (kills < 5) {
            Process process(arguments(folder, output), /*in_terminal=*/false);
            const int code =
                process.wait(std::uniform_real_distribution<double>(0.2, 0.6)(random) * whole_s);
            if (code != -1) {
                CAPTURE(process.output());
                REQUIRE(code == 0);
                break;
            }
            process.send(SIGKILL);
            const int killed = process.wait(10);
            if (fs::exists(output)) {  // the signal came when all was done
                break;
            }
            CHECK(killed == 1000 + SIGKILL);
            ++kills;
            const std::int64_t lines = whole_lines(journal);
            CHECK(lines >= held);
            held = lines;
        }
        CHECK(kills > 0);
        if (!fs::exists(output)) {
            // Ctrl-C first: it says how to go on.
            Process stopped(arguments(folder, output), /*in_terminal=*/false);
            if (stopped.wait_for("plan ", 120)) {
                stopped.send(SIGINT);
            }
            const int code = stopped.wait(60);
            CAPTURE(stopped.output());
            CHECK((code == 130 || code == 0));
            CHECK((code == 0 ||
                   stopped.output().find("the same command goes on") != std::string::npos));
            CHECK(whole_lines(journal) >= (code == 0 ? 0 : held));
        }
        if (!fs::exists(output)) {
            Process finish(arguments(folder, output), /*in_terminal=*/false);
            const int code = finish.wait(240);
            CAPTURE(finish.output());
            CHECK(code == 0);
            CHECK(finish.output().find("resumed ") != std::string::npos);
        }
        CHECK(bytes_of(output) == bytes_of(whole));
        MESSAGE(kills << " kills, " << held << " lines of the journal after the last");
        fs::remove_all(folder);
    }

    TEST_CASE("training on prompts: killed while it answers or trains it ends with the same bits") {
        const std::string folder = fresh_folder("prompts");
        fs::create_directories(folder);
        write_prompts(folder + "/rows.jsonl", 160);
        const auto start = [&](const std::string& name) {
            return tiny_arguments(folder + "/" + name,
                                  1000,
                                  {"--data",
                                   folder + "/rows.jsonl",
                                   "--epochs",
                                   "1",
                                   "--set",
                                   "cache.dir=" + folder + "/cache-of-" + name,
                                   "--set",
                                   "generate.max_new_tokens=60",
                                   "--set",
                                   "generate.temperature=1.1",
                                   "--set",
                                   "generate.batch=2",
                                   "--set",
                                   "generate.shard_rows=50",
                                   "--set",
                                   "checkpoint.every=500ms"});
        };
        const auto state = [&](const std::string& name) {
            return bytes_of(folder + "/" + name + "/latest/state/optimizer.safetensors");
        };
        const auto started = std::chrono::steady_clock::now();
        Process reference(start("whole"), /*in_terminal=*/false);
        const int reference_code = reference.wait(240);
        CAPTURE(reference.output());
        REQUIRE(reference_code == 0);
        const double whole_s =
            std::chrono::duration<double>(std::chrono::steady_clock::now() - started).count();

        const std::string run = folder + "/killed";
        std::mt19937 random(20260203);
        int kills = 0;
        for (bool done = false; !done;) {
            // A run that was killed before it had anything begins again.
            const bool resumes =
                fs::exists(run + "/config.toml") &&
                (fs::exists(run + "/answers.jsonl") || fs::exists(run + "/latest"));
            if (!resumes) {
                fs::remove_all(run);
            }
            Process process(resumes ? std::vector<std::string>{"--resume", run} : start("killed"),
                            /*in_terminal=*/false);
            const double patience =
                kills < 4 ? std::uniform_real_distribution<double>(0.1, 0.5)(random) * whole_s
                          : 240;
            const int code = process.wait(patience);
            CAPTURE(process.output());
            done = code != -1;
            if (done) {
                REQUIRE(code == 0);
                break;
            }
            REQUIRE(kills < 4);
            process.send(SIGKILL);
            process.wait(10);
            ++kills;
        }
        CHECK(kills > 0);
        CHECK(state("killed") == state("whole"));
        CHECK(whole_lines(run + "/answers.jsonl") == 161);
        MESSAGE(kills << " kills of a run of " << whole_s << " s");
        fs::remove_all(folder);
    }
}

}  // namespace dflash::cli
