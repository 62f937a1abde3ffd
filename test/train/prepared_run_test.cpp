// SPDX-License-Identifier: Apache-2.0
#include "tiny_run.hpp"

#include <dflash/core/error.hpp>

#include <doctest/doctest.h>
#include <fstream>

namespace dflash::train {

TEST_SUITE("train.prepared_run") {
    TEST_CASE("a tokenizer with more ids than the target has rows is refused before anything") {
        const TemporaryFolder folder;
        const std::string target = folder.path("target");
        std::filesystem::copy("test/golden/targets/T1", target);
        const std::string path = target + "/tokenizer.json";
        std::string text = file_bytes(path);
        const std::size_t at = text.find("\"e\":104");
        REQUIRE(at != std::string::npos);
        std::ofstream(path) << text.replace(at, 7, "\"e\":600");

        TrainRequest request = tiny_request(folder.path("run"), 1);
        request.settings.run.target = target;
        request.settings.draft.mask_token_id = 5;
        try {
            run(request);
            FAIL("expected an error");
        } catch (const Error& error) {
            CHECK(error.kind() == ErrorKind::Config);
            CHECK(error.parts().what.find("ids up to 600, expected less than 512") !=
                  std::string::npos);
        }
        CHECK_FALSE(std::filesystem::exists(folder.path("run")));
    }
}

}  // namespace dflash::train
