// SPDX-License-Identifier: Apache-2.0
#include "captured_run.hpp"

#include <dflash/cli/train_options.hpp>
#include <dflash/core/error.hpp>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <doctest/doctest.h>
#include <filesystem>
#include <fstream>
#include <unistd.h>
#include <utility>

namespace dflash::cli {
namespace {

std::string error_of(const TrainOptions& options) {
    try {
        resolve(options, "dflash");
    } catch (const Error& error) {
        CHECK(error.kind() == ErrorKind::Config);
        return error.what();
    }
    return "";
}

TrainOptions with_set(const std::string& assignment) {
    TrainOptions options;
    options.set.push_back(assignment);
    return options;
}

int run_with(std::vector<std::string> arguments) {
    return captured_run(std::move(arguments)).code;
}

}  // namespace

TEST_SUITE("cli.options") {
    TEST_CASE("the options of training are frozen") {
        CLI::App app;
        TrainOptions options;
        options.add_to(app);
        std::vector<std::string> names;
        for (const CLI::Option* option : app.get_options()) {
            names.push_back(option->get_name());
        }
        std::sort(names.begin(), names.end());
        CHECK(names == std::vector<std::string>{
                           "--anchors", "--block-size", "--config",      "--data",  "--draft-gpus",
                           "--epochs",  "--eval-data",  "--extend-data", "--gpus",  "--help",
                           "--hours",   "--init",       "--layers",      "--lr",    "--max-length",
                           "--output",  "--resume",     "--seed",        "--set",   "--split",
                           "--step",    "--target",     "--target-gpus", "--tokens"});
    }

    TEST_CASE("named options win over --set, which wins over a file") {
        const std::string path =
            (std::filesystem::temp_directory_path() / "dflash-options-test.toml").string();
        std::ofstream(path) << "[train]\nlr = 1e-1\nclip = 3\nepochs = 9\n";
        TrainOptions options;
        options.config_file = path;
        options.set = {"train.lr=1e-2", "train.clip=2"};
        for (TrainOptions::Alias& alias : options.aliases) {
            if (alias.option == "--lr") {
                alias.value = "1e-3";
            }
        }
        const train::TrainRequest request = resolve(options, "dflash");
        CHECK(request.settings.train.lr == 1e-3);
        CHECK(request.settings.train.clip == 2);
        CHECK(request.settings.train.epochs == 9);
        REQUIRE(request.changed_settings.size() == 3);
        CHECK(request.changed_settings[0] == "train.lr = 0.001 (--lr)");
        CHECK(request.changed_settings[1].find("--set") != std::string::npos);
        CHECK(request.changed_settings[2].find(path + ":4:1") != std::string::npos);
        std::filesystem::remove(path);
    }

    TEST_CASE("a run has one length: that of the highest level, whichever way it is given") {
        const std::string path =
            (std::filesystem::temp_directory_path() / "dflash-length-test.toml").string();
        const auto resolved = [&](const std::string& file,
                                  const std::vector<std::string>& set,
                                  const std::string& option,
                                  const std::string& value) {
            std::ofstream(path) << "[train]\n" << file;
            TrainOptions options;
            options.config_file = path;
            options.set = set;
            for (TrainOptions::Alias& alias : options.aliases) {
                if (alias.option == option) {
                    alias.value = value;
                }
            }
            return resolve(options, "dflash").settings.train;
        };
        train::TrainSettings train = resolved("hours = 3\nepochs = 6\n", {}, "", "");
        CHECK(train.hours == 3.0);
        CHECK(train.epochs == 6);
        train = resolved("hours = 3\nepochs = 6\n", {}, "--epochs", "12");
        CHECK_FALSE(train.hours);
        CHECK(train.epochs == 12);
        train = resolved("hours = 3\n", {"train.tokens=500"}, "", "");
        CHECK_FALSE(train.hours);
        CHECK(train.tokens == 500);
        train = resolved("tokens = 3\n", {"train.epochs=5"}, "--hours", "0.5");
        CHECK(train.hours == 0.5);
        CHECK_FALSE(train.tokens);
        std::filesystem::remove(path);
        TrainOptions extend_alone;
        extend_alone.extend_data = true;
        CHECK(error_of(extend_alone).find("--extend-data is given without --resume") !=
              std::string::npos);
    }

    TEST_CASE("text settings take numbers as they are written") {
        CHECK(resolve(with_set("run.gpus=0"), "").settings.run.gpus == "0");
        CHECK(resolve(with_set("eval.every=90s"), "").settings.eval.every.seconds == 90);
        CHECK(resolve(with_set("train.schedule=wsd"), "").settings.train.schedule == "wsd");
        CHECK(resolve(with_set("train.schedule=\"wsd\""), "").settings.train.schedule == "wsd");
    }

    TEST_CASE("wrong settings are refused with what was got and what is expected") {
        CHECK(error_of(with_set("train.rows_per_step=0"))
                  .find("got 0, expected integer, 1 to 16777216") != std::string::npos);
        CHECK(error_of(with_set("train.schedule=linear")).find("one of cosine, wsd") !=
              std::string::npos);
        CHECK(error_of(with_set("eval.every=90")).find("a time with a unit") != std::string::npos);
        CHECK(error_of(with_set("train.lr=nan")).find("train.lr") != std::string::npos);
        CHECK(error_of(with_set("train.learning_rate=1")).find("dflash calls it train.lr") !=
              std::string::npos);
        CHECK(error_of(with_set("train.epoch=1")).find("Did you mean train.epochs") !=
              std::string::npos);
        CHECK(error_of(with_set("train.betas=[0.9]")).find("expected 2") != std::string::npos);
        TrainOptions both;
        both.set = {"train.hours=1", "train.tokens=5"};
        CHECK(error_of(both).find("train.hours and train.tokens") != std::string::npos);
        TrainOptions step_alone;
        step_alone.step = 5;
        CHECK(error_of(step_alone).find("--resume") != std::string::npos);
    }

    TEST_CASE("a resumed run goes on in its own folder, and no other can be named") {
        namespace fs = std::filesystem;
        const fs::path folder =
            fs::temp_directory_path() / ("dflash-options-" + std::to_string(::getpid()));
        fs::create_directories(folder);
        std::ofstream(folder / "config.toml") << "[train]\nlr = 0.5\n";
        TrainOptions options;
        options.resume = folder.string();
        CHECK(resolve(options, "").settings.train.lr == 0.5);
        options.set = {"run.output=elsewhere"};
        CHECK(error_of(options).find("--output elsewhere is given with --resume") !=
              std::string::npos);
        fs::remove_all(folder);
    }

    TEST_CASE("the command line gives exit code 2 for what it does not know") {
        CHECK(run_with({"--learning-rate", "1"}) == 2);
        CHECK(run_with({"--gpuss", "cpu:1"}) == 2);
        CHECK(run_with({"trian"}) == 2);
        CHECK(run_with({"--set"}) == 2);
        CHECK(run_with({}) == 2);
        CHECK(run_with({"--help"}) == 0);
        CHECK(run_with({"train", "--help"}) == 0);
        CHECK(run_with({"--help-settings"}) == 0);
        CHECK(run_with({"--version"}) == 0);
        CHECK(run_with({"devices", "--gpus", "cpu:2"}) == 0);
    }

    TEST_CASE("a GPU that is not there gives exit code 4, a list that is none gives 2") {
        CHECK(run_with({"devices", "--gpus", "97"}) == 4);
        CHECK(run_with({"devices", "--gpus", "1-"}) == 2);
        CHECK(run_with({"devices", "--gpus", "cpu:0"}) == 2);
    }

    TEST_CASE("plan prints without writing anything") {
        CHECK(run_with({"plan", "--config", "configs/tiny-cpu.toml", "--gpus", "cpu:4"}) == 0);
    }
}

}  // namespace dflash::cli
