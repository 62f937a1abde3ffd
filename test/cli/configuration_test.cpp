// SPDX-License-Identifier: Apache-2.0
// docs/configuration.md and configs/ against the settings in the code.
#include <dflash/cli/settings_help.hpp>
#include <dflash/cli/train_options.hpp>
#include <dflash/core/error.hpp>

#include <doctest/doctest.h>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

namespace dflash::cli {
namespace {

std::string text_of(const std::string& path) {
    std::ifstream file(path);
    REQUIRE_MESSAGE(file.good(), path);
    std::ostringstream text;
    text << file.rdbuf();
    return text.str();
}

}  // namespace

TEST_SUITE("cli.configuration") {
    TEST_CASE("docs/configuration.md holds the table of all settings as the code declares them") {
        const std::string docs = text_of("docs/configuration.md");
        std::istringstream rows(settings_table());
        for (std::string row; std::getline(rows, row);) {
            CAPTURE(row);
            CHECK(docs.find(row + "\n") != std::string::npos);
        }
        train::Settings settings;
        std::istringstream lines(docs);
        std::size_t documented = 0;
        for (std::string line; std::getline(lines, line);) {
            documented += line.starts_with("| `") && line.find('.') < line.find('`', 3) ? 1U : 0U;
        }
        CHECK(documented == settings.list().all().size());
    }

    TEST_CASE("the defaults are those of the design") {
        const train::Settings s;
        CHECK(s.train.lr == 6e-4);
        CHECK(s.train.betas == std::vector<double>{0.9, 0.95});
        CHECK(s.train.weight_decay == 0);
        CHECK(s.train.clip == 1.0);
        CHECK(s.train.schedule == "cosine");
        CHECK(s.train.min_lr_fraction == 0.1);
        CHECK(s.train.warmup_fraction == 0.04);
        CHECK(s.train.wsd_decay_fraction == 0.2);
        CHECK(s.train.epochs == 6);
        CHECK(s.train.rows_per_step == 12);
        CHECK(s.train.loss_weights == "decay");
        CHECK(s.data.window == 2048);
        CHECK(s.data.row_tokens == 8192);
        CHECK(s.data.row_anchors == 2048);
        CHECK(s.data.max_length == 4096);
        CHECK(s.data.max_bad_fraction == 0.01);
        CHECK(s.draft.anchors == 512);
        CHECK(s.eval.fraction == 0.005);
        CHECK(s.eval.every.seconds == 1800);
        CHECK(s.eval.max_fraction == 0.03);
        CHECK(s.report.every.seconds == 10);
        CHECK(s.report.line_every.seconds == 60);
        CHECK(s.checkpoint.every.seconds == 1800);
        CHECK(s.checkpoint.keep == 2);
        CHECK(s.checkpoint.keep_drafts == 3);
        CHECK(s.run.target == "Qwen/Qwen3.6-27B");
        CHECK(s.run.gpus == "all");
    }

    TEST_CASE("every file in configs/ is read without an error") {
        int files = 0;
        for (const auto& entry : std::filesystem::directory_iterator("configs")) {
            CAPTURE(entry.path().string());
            TrainOptions options;
            options.config_file = entry.path().string();
            CHECK_NOTHROW(resolve(options, "dflash"));
            ++files;
        }
        CHECK(files >= 1);
    }

    TEST_CASE("resolved settings read back to the same values") {
        train::Settings settings;
        settings.train.lr = 1.5e-5;
        settings.draft.target_layer_ids = {{1, 5, 9}};
        settings.run.data = "odd \"name\" \\ .jsonl";
        const std::string path =
            (std::filesystem::temp_directory_path() / "dflash-dump-test.toml").string();
        std::ofstream(path) << settings.list().dump();
        TrainOptions options;
        options.config_file = path;
        train::Settings back = resolve(options, "dflash").settings;
        CHECK(back.list().dump() == settings.list().dump());
        std::filesystem::remove(path);
    }
}

}  // namespace dflash::cli
