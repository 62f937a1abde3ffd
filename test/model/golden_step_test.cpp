// SPDX-License-Identifier: Apache-2.0
// The comparisons of golden_check's mode "step", as tests on copies of the golden data.
#include "../golden_check/golden_check.hpp"

#include <dflash/core/error.hpp>

#include <cstdlib>
#include <doctest/doctest.h>
#include <filesystem>
#include <fstream>

namespace dflash::golden {

namespace {

const std::string kFolder = "test/golden/drafter/";

Options cpu() {
    Options options;
    options.device.name = "cpu:0";
    return options;
}

TEST_SUITE("model.golden") {
    TEST_CASE("hidden rows, losses and gradients are those of the reference") {
        for (const char* name : {"full5",
                                 "mixed5",
                                 "plain2",
                                 "uniform2",
                                 "tail2",
                                 "head2",
                                 "dpace2",
                                 "dpace2_prefix",
                                 "dpace2_suffix"}) {
            CAPTURE(name);
            Verdict verdict;
            check_step(kFolder + name, cpu(), verdict);
            CHECK(verdict.ok());
        }
    }

    TEST_CASE("a case with another loss is refused by name") {
        namespace fs = std::filesystem;
        const fs::path folder =
            fs::temp_directory_path() / ("dflash-golden-" + std::to_string(std::rand()));
        fs::create_directories(folder);
        fs::copy_file(kFolder + "plain2/config.json", folder / "config.json");
        std::ofstream(folder / "case.json")
            << R"({"config": "config.json", "loss_type": "domino", "block_size": 8})";
        Verdict verdict;
        CHECK_THROWS_WITH_AS(check_step(folder.string(), cpu(), verdict),
                             doctest::Contains("loss_type: got \"domino\""),
                             Error);
        fs::remove_all(folder);
    }
}

}  // namespace
}  // namespace dflash::golden
