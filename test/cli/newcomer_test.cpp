// SPDX-License-Identifier: Apache-2.0
// What a newcomer does with the README alone: start, stop, go on, change the learning rate, train
// longer, find the best draft. Every command is taken from the README or from what the program
// printed.
#include "process.hpp"

#include <algorithm>
#include <csignal>
#include <doctest/doctest.h>
#include <filesystem>
#include <fstream>
#include <sstream>

namespace dflash::cli {
namespace {

namespace fs = std::filesystem;

std::string text_of(const std::string& path) {
    std::ifstream file(path);
    std::ostringstream text;
    text << file.rdbuf();
    return text.str();
}

/// The words behind `before` on the last line that holds it.
std::vector<std::string> words_behind(const std::string& output, const std::string& before) {
    const std::size_t at = output.rfind(before);
    REQUIRE_MESSAGE(at != std::string::npos, before << " is not in " << output);
    std::istringstream line(
        output.substr(at + before.size(), output.find_first_of("\r\n", at) - at - before.size()));
    std::vector<std::string> words;
    for (std::string word; line >> word;) {
        words.push_back(word);
    }
    return words;
}

/// A line of the README that begins with `command`, as arguments, with RUN replaced.
std::vector<std::string> readme_command(const std::string& command, const std::string& run) {
    const std::string readme = text_of("README.md");
    const std::size_t at = readme.find("\n" + command);
    REQUIRE_MESSAGE(at != std::string::npos, command << " is not in README.md");
    std::istringstream line(readme.substr(at + 1, readme.find_first_of("#\n", at + 1) - at - 1));
    std::vector<std::string> words;
    for (std::string word; line >> word;) {
        words.push_back(word == "RUN" ? run : word);
    }
    words.erase(words.begin());  // dflash
    return words;
}

}  // namespace

TEST_SUITE("process.newcomer") {
    TEST_CASE("start, stop, resume, change the learning rate, train longer, find the best draft") {
        const std::string run = fresh_folder("newcomer");
        std::vector<std::string> first =
            tiny_arguments(run, 1, {"--set", "train.max_steps=100000", "--epochs", "2"});

        Process start(first, /*in_terminal=*/false);
        REQUIRE(start.wait_for("step ", 120));
        start.send(SIGINT);
        CHECK(start.wait(120) == 130);
        const std::vector<std::string> resume = words_behind(start.output(), "continue  dflash");
        REQUIRE(resume == std::vector<std::string>{"--resume", run});

        // The same command again does not go on by itself, and says what would.
        const std::string second_run = run + "-2";
        std::vector<std::string> again = first;
        std::replace(again.begin(), again.end(), run, second_run);
        Process new_run(again, /*in_terminal=*/false);
        REQUIRE(new_run.wait_for("To continue that: dflash --resume " + run, 120));
        new_run.send(SIGINT);
        CHECK(new_run.wait(120) == 130);

        Process slower(readme_command("dflash --resume RUN --lr", run), /*in_terminal=*/false);
        CHECK(slower.wait(300) == 0);
        CAPTURE(slower.output());
        CHECK(slower.output().find("changed   train.lr: 0.003 until step ") != std::string::npos);

        Process done(resume, /*in_terminal=*/false);
        CHECK(done.wait(120) == 0);
        CHECK(done.output().find("this run is done") != std::string::npos);
        const std::vector<std::string> longer =
            words_behind(done.output(), "to train longer: dflash");
        CHECK(longer == std::vector<std::string>{"--resume", run, "--epochs", "4"});
        CHECK(readme_command("dflash --resume RUN --epochs", run).at(2) == "--epochs");
        Process more(longer, /*in_terminal=*/false);
        CHECK(more.wait(300) == 0);

        CHECK(text_of("README.md").find("RUN/best/draft") != std::string::npos);
        CHECK(fs::exists(run + "/best/draft/config.json"));
        CHECK(fs::exists(run + "/best/draft/model.safetensors"));
        CHECK(words_behind(more.output(), "best      ").front() == run + "/best/draft:");
        fs::remove_all(run);
        fs::remove_all(second_run);
    }
}

}  // namespace dflash::cli
