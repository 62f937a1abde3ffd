// SPDX-License-Identifier: Apache-2.0
#include "tiny_run.hpp"

#include <dflash/core/error.hpp>
#include <dflash/train/prepared_run.hpp>

#include <algorithm>
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

    TEST_CASE("no sample is both trained on and held out, and none is lost") {
        // Pain: two float expressions for the two sides put one row of 12,501 into both.
        const TemporaryFolder folder;
        const std::string path = folder.path("rows.jsonl");
        {
            std::ofstream out(path);
            for (int i = 0; i < 12'501; ++i) {
                out << R"({"prompt": ")" << i << R"(", "response": "abcd"})" << '\n';
            }
        }
        TrainRequest request = tiny_request(folder.path("run"), 1);
        request.settings.run.data = path;
        for (const double fraction : {0.2, 0.005, 0.5}) {
            CAPTURE(fraction);
            request.settings.eval.fraction = fraction;
            const PreparedRun run = prepare_run(request.settings);
            std::vector<SampleId> all = run.train_ids;
            all.insert(all.end(), run.held_out_ids.begin(), run.held_out_ids.end());
            std::sort(all.begin(), all.end());
            CHECK(all.size() == 12'501);
            CHECK(std::adjacent_find(all.begin(), all.end()) == all.end());
            CHECK(std::ssize(run.held_out_ids) == num_held_out(fraction, 12'501));
        }
    }

    TEST_CASE("weights of files say how many samples an epoch has, and belong to the run's maths") {
        const TemporaryFolder folder;
        const std::string path = folder.path("more.jsonl");
        {
            std::ofstream out(path);
            for (int i = 0; i < 40; ++i) {
                out << R"({"prompt": ")" << i << R"(", "response": "abcdefgh"})" << '\n';
            }
        }
        TrainRequest request = tiny_request(folder.path("run"), 1);
        request.settings.eval.fraction = 0;
        const std::string first = request.settings.run.data;
        request.settings.run.data = first + ":0.5," + path + ":2";
        const PreparedRun run = prepare_run(request.settings);
        const auto num_first = std::ssize(run.train_ids) - 40;
        CHECK(run.epoch_sizes.in_epoch(0) == (num_first + 1) / 2 + 80);
        CHECK(run.epoch_ids.in_epoch(0) == num_first + 40);
        CHECK(identity_of(request.settings, run).at("data_weights") == "0.5, 2");
        request.settings.run.data = first + "," + path;
        const PreparedRun plain = prepare_run(request.settings);
        CHECK(plain.epoch_sizes == plain.epoch_ids);
        CHECK(identity_of(request.settings, plain).count("data_weights") == 0);
    }
}

}  // namespace dflash::train
