// SPDX-License-Identifier: Apache-2.0
#include "fuzz_loop.hpp"
#include "temp_folder.hpp"

#include <dflash/model/config.hpp>
#include <dflash/target/config.hpp>

#include <doctest/doctest.h>
#include <fstream>

namespace dflash {

TEST_SUITE("fuzz.config") {
    TEST_CASE("fuzz: config.json of a target is read or refused") {
        const std::vector<std::string> seeds = {
            test::read_seed("test/golden/targets/T1/config.json"),
            test::read_seed("test/golden/targets/T3/config.json")};
        const test::TempFolder folder;
        test::fuzz({.name = "target config.json",
                    .make_input =
                        [&](RandomStream& random) { return test::mutate_json_text(seeds, random); },
                    .read =
                        [&](const std::string& input) {
                            std::ofstream(folder / "config.json", std::ios::binary) << input;
                            target::TargetConfig::read(folder.path());
                        }});
    }

    TEST_CASE("fuzz: config.json of a drafter is read or refused, and written as it was read") {
        const std::vector<std::string> seeds = {
            test::read_seed("test/golden/drafter/full5/config.json"),
            test::read_seed("test/golden/drafter/mixed5/config.json")};
        test::fuzz(
            {.name = "drafter config.json",
             .make_input =
                 [&](RandomStream& random) { return test::mutate_json_text(seeds, random); },
             .read =
                 [](const std::string& input) {
                     const auto config =
                         model::DraftConfig::from_json(io::Json::parse(input, "config.json"), "");
                     const std::string written = config.to_json().dump();
                     CAPTURE(input);
                     CAPTURE(written);
                     CHECK(model::DraftConfig::from_json(config.to_json(), "again") == config);
                 }});
    }
}

}  // namespace dflash
