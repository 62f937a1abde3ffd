// SPDX-License-Identifier: Apache-2.0
// Where the output of commands goes, and what happens when it cannot.
#include "process.hpp"

#include <doctest/doctest.h>
#include <string>

namespace dflash::cli {
namespace {

struct Outcome {
    int code = 0;
    std::string output;
};

// A line for a shell, after the program.
Outcome run_in_shell(const std::string& rest) {
    Process shell = Process::of({"sh", "-c", shell_quoted(DFLASH_PROGRAM) + " " + rest}, false);
    Outcome outcome;
    outcome.code = shell.wait(60);
    outcome.output = shell.output();
    return outcome;
}

TEST_SUITE("process.output") {
    TEST_CASE("output that a full disk refuses is an error of storage") {
        for (const char* command : {"devices --gpus cpu:1",
                                    "plan --config configs/tiny-cpu.toml",
                                    "data --config configs/tiny-cpu.toml",
                                    "kernels --help",
                                    "--help",
                                    "--version"}) {
            CAPTURE(command);
            const Outcome outcome = run_in_shell(std::string(command) + " > /dev/full");
            CHECK(outcome.code == 6);
            CHECK(outcome.output.find("kind        storage") != std::string::npos);
        }
    }

    TEST_CASE("errors of a command go to standard error, and leave its output clean") {
        for (const char* command :
             {"data --json --data /nonexistent --target test/golden/targets/T1",
              "status --json /nonexistent",
              "plan --nonsense"}) {
            CAPTURE(command);
            const Outcome quiet = run_in_shell(std::string(command) + " 2> /dev/null");
            CHECK(quiet.code != 0);
            CHECK(quiet.output.empty());
            const Outcome told = run_in_shell(std::string(command) + " > /dev/null");
            CHECK(told.code == quiet.code);
            CHECK(told.output.find("what to do") != std::string::npos);
        }
    }
}

}  // namespace
}  // namespace dflash::cli
