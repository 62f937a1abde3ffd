// SPDX-License-Identifier: Apache-2.0
// What a resume does with finished, interrupted and damaged runs.
#include "tiny_run.hpp"

#include <dflash/core/error.hpp>
#include <dflash/io/folder_lock.hpp>
#include <dflash/io/json.hpp>
#include <dflash/train/checkpoint.hpp>
#include <dflash/train/resume.hpp>
#include <dflash/train/run_search.hpp>

#include <csignal>
#include <doctest/doctest.h>
#include <fstream>
#include <functional>
#include <iterator>

namespace dflash::train {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kSteps = 2;

TrainRequest resume_request(const std::string& folder) {
    TrainRequest request = tiny_request(folder, kSteps);
    request.resume_folder = folder;
    return request;
}

void replace_text(const std::string& path, const std::string& from, const std::string& to) {
    std::string text = file_bytes(path);
    const std::size_t at = text.find(from);
    REQUIRE(at != std::string::npos);
    std::ofstream(path, std::ios::binary) << text.replace(at, from.size(), to);
}

}  // namespace

TEST_SUITE("train.resume") {
    TEST_CASE("a finished run that is resumed is not evaluated twice at its last step") {
        const TemporaryFolder folder;
        REQUIRE(run(tiny_request(folder.path("a"), kSteps)) == 0);
        const std::string before = file_bytes(folder.path("a") + "/metrics.jsonl");
        REQUIRE(run(resume_request(folder.path("a"))) == 0);
        CHECK(file_bytes(folder.path("a") + "/metrics.jsonl") == before);
    }

    TEST_CASE("a stop before the first evaluation ends without one, and a resume makes it") {
        const TemporaryFolder folder;
        StopSignals signals;
        signals.stop_signal = SIGINT;
        CHECK(train(tiny_request(folder.path("a"), kSteps), signals) == 130);
        CHECK(metrics(folder.path("a"), "eval").empty());
        REQUIRE(run(resume_request(folder.path("a"))) == 0);
        CHECK(metrics(folder.path("a"), "eval").size() == 2);
        CHECK(std::ssize(losses(folder.path("a"))) == kSteps);
    }

    TEST_CASE("the acceptance of a step that was saved before its evaluation is added") {
        const TemporaryFolder folder;
        TrainRequest request = tiny_request(folder.path("a"), kSteps);
        request.settings.checkpoint.every = {1e-6};  // after every step, so before the last one's
        REQUIRE(run(request) == 0);
        const CheckpointStore store(folder.path("a"), 2, 3);
        REQUIRE(store.acceptance_of(kSteps));
        CHECK(*store.acceptance_of(kSteps) >= 1);
        CHECK_FALSE(store.acceptance_of(kSteps - 1));
    }

    TEST_CASE("a learning rate given on resume holds from the next step on, and is recorded") {
        const TemporaryFolder folder;
        const std::string output = folder.path("a");
        TrainRequest request = tiny_request(output, 3);
        request.settings.train.warmup_fraction = 0;
        REQUIRE(run(request) == 0);
        request.resume_folder = output;
        request.settings.train.lr = 1e-4;
        request.settings.train.max_steps = 5;
        request.command_line = "dflash --resume a --lr 1e-4";
        REQUIRE(run(request) == 0);
        const std::vector<io::Json> steps = metrics(output, "step");
        REQUIRE(steps.size() == 5);
        CHECK(steps.at(2).require_number("lr", "") == doctest::Approx(3e-3).epsilon(0.01));
        CHECK(steps.at(3).require_number("lr", "") == doctest::Approx(1e-4).epsilon(0.01));
        REQUIRE(metrics(output, "resume").size() == 1);
        const io::Json change = metrics(output, "resume").front();
        CHECK(change.require_integer("step", "") == 3);
        CHECK(change.dump().find("train.lr: 0.003 until step 3, 0.0001 from here on") !=
              std::string::npos);
        const std::string config = file_bytes(output + "/config.toml");
        CHECK(config.find("# Resumed after step 3 at 20") != std::string::npos);
        CHECK(config.find("#   train.lr: 0.003 until step 3, 0.0001 from here on") !=
              std::string::npos);
        CHECK(config.find("\nlr = 0.0001\n") != std::string::npos);

        // Once more, without a change: what was is kept.
        request.settings.train.max_steps = 6;
        request.command_line = "third";
        REQUIRE(run(request) == 0);
        CHECK(file_bytes(output + "/config.toml").find("#   train.lr: 0.003 until step 3") !=
              std::string::npos);
        const io::Json environment = io::read_json_file(output + "/environment.json");
        CHECK(environment.require_string("command_line", "") == "third");
        CHECK(environment.require_integer("continues_after_step", "") == 5);
        const std::vector<io::Json>& former = environment.find("former")->items();
        REQUIRE(former.size() == 2);
        CHECK(former[0].require_integer("continues_after_step", "") == 0);
        CHECK(former[0].find("former") == nullptr);
        CHECK(former[1].require_string("command_line", "") == "dflash --resume a --lr 1e-4");
        CHECK(former[1].find("changes")->items().size() == 2);  // what, and what it does
        for (const char* key : {"working_directory",
                                "started_at",
                                "version",
                                "build",
                                "libraries",
                                "devices",
                                "host",
                                "process",
                                "target",
                                "target_revision",
                                "data"}) {
            CAPTURE(key);
            CHECK(environment.find(key) != nullptr);
        }
        for (const char* key : {"commit", "compiler", "build_type"}) {
            CHECK_FALSE(environment.find("build")->require_string(key, "").empty());
        }
        for (const char* key : {"name", "system", "kernel", "cpu"}) {
            CHECK_FALSE(environment.find("host")->require_string(key, "").empty());
        }
        CHECK(environment.find("libraries")->find("LibTorch") != nullptr);
        CHECK(environment.find("libraries")->find("NVRTC") == nullptr);  // on CPU devices
    }

    TEST_CASE("products that were made otherwise before are told, and change nothing on the CPU") {
        const TemporaryFolder folder;
        TrainRequest request = tiny_request(folder.path("a"), 4);
        REQUIRE(run(request) == 0);
        CHECK_FALSE(fs::exists(folder.path("a") + "/products.json"));  // of GPUs alone

        const std::string output = folder.path("b");
        request = tiny_request(output, 2);
        REQUIRE(run(request) == 0);
        const ProductRecord record{
            .way = "timed",
            .gpus = {{.gpu = "NVIDIA H200",
                      .library = "130100 abc",
                      .choices = {
                          {"256x512x1024 nt bf16", {.algorithm = {}, .ms = 1, .guess_ms = 1}}}}}};
        std::ofstream(output + "/latest/state/products.json") << record.to_text();
        request.resume_folder = output;
        request.settings.train.max_steps = 4;
        REQUIRE(run(request) == 0);
        REQUIRE(metrics(output, "resume").size() == 1);
        CHECK(metrics(output, "resume").front().require_integer("step", "") == 2);
        CHECK(metrics(output, "resume")
                  .front()
                  .dump()
                  .find("products: timed by cuBLASLt on NVIDIA H200 with cuBLASLt 130100 abc "
                        "before, on the CPU now") != std::string::npos);
        CHECK(losses(output) == losses(folder.path("a")));
        CHECK_FALSE(fs::exists(output + "/latest/state/products.json"));
    }

    TEST_CASE(
        "a finished run that is made longer goes on where it stood, at the rate in the middle") {
        const TemporaryFolder folder;
        const std::string output = folder.path("a");
        TrainRequest request = tiny_request(output, 1);
        request.settings.train.max_steps.reset();
        request.settings.train.epochs = 2;
        request.settings.train.warmup_fraction = 0;
        REQUIRE(run(request) == 0);
        const std::size_t steps_before = losses(output).size();
        const double last_rate = metrics(output, "step").back().require_number("lr", "");
        request.resume_folder = output;
        request.settings.train.epochs = 4;
        REQUIRE(run(request) == 0);
        const std::vector<io::Json> steps = metrics(output, "step");
        CHECK(steps.size() > steps_before + 1);
        CHECK(steps.back().require_number("fraction_done", "") == 1);
        CHECK(steps.at(steps_before).require_number("fraction_done", "") ==
              doctest::Approx(0.5).epsilon(0.2));
        CHECK(steps.at(steps_before).require_number("lr", "") > 2 * last_rate);
        CHECK(steps.back().require_number("lr", "") == doctest::Approx(last_rate));
        CHECK(steps.back().require_integer("samples", "") ==
              2 * steps.at(steps_before - 1).require_integer("samples", ""));
        CHECK(metrics(output, "resume").front().dump().find("train.epochs: 2 until step") !=
              std::string::npos);
    }

    TEST_CASE("what may change on resume are settings of the maths that act on steps to come") {
        Settings settings;
        std::vector<std::string> names;
        const SettingList list = settings.list();
        for (const Setting& setting : list.all()) {
            if (may_change_on_resume(setting.name)) {
                CHECK(setting.check.maths);
                names.push_back(setting.name);
            }
        }
        CHECK(names == std::vector<std::string>{"train.lr",
                                                "train.weight_decay",
                                                "train.clip",
                                                "train.schedule",
                                                "train.warmup_fraction",
                                                "train.min_lr_fraction",
                                                "train.wsd_decay_fraction",
                                                "train.epochs",
                                                "train.tokens",
                                                "train.hours"});
        const Identity saved{{"train.lr", "0.1"}, {"draft.anchors", "512"}, {"data", "x"}};
        const Identity changed{{"train.lr", "0.2"}, {"draft.anchors", "512"}, {"data", "y"}};
        const std::vector<ResumeChange> changes = changes_on_resume(saved, changed, "runs/a");
        REQUIRE(changes.size() == 1);
        CHECK(changes[0].before == "0.1");
        CHECK(changes[0].now == "0.2");
        CHECK_THROWS_WITH_AS(
            changes_on_resume(saved, {{"draft.anchors", "9"}, {"train.lr", "0.1"}}, "my runs/a"),
            doctest::Contains("dflash --config 'my runs/a'/config.toml --init 'my "
                              "runs/a'/latest/draft --set draft.anchors=9"),
            Error);
    }

    TEST_CASE("a run that was saved before a setting existed goes on with its default") {
        const Identity saved{{"draft.anchors", "512"}};
        const std::string unset = to_toml(std::monostate());
        CHECK(changes_on_resume(
                  saved,
                  {{"draft.anchors", "512"},
                   {"train.loss_weights", to_toml(SettingValue(Settings{}.train.loss_weights))},
                   {"train.dpace_alpha", unset}},
                  "runs/a")
                  .empty());
        CHECK_THROWS_WITH_AS(
            changes_on_resume(
                saved, {{"draft.anchors", "512"}, {"train.loss_weights", "\"dpace\""}}, "runs/a"),
            doctest::Contains("train.loss_weights: (absent) when it was saved, \"dpace\" now"),
            Error);
        // What is no setting of today is another maths, too.
        CHECK_THROWS_AS(changes_on_resume({{"draft.anchors", "512"}, {"draft.old", "1"}},
                                          {{"draft.anchors", "512"}},
                                          "runs/a"),
                        Error);
    }

    TEST_CASE("the best draft is that of the best held-out acceptance, and a link leads to it") {
        const TemporaryFolder folder;
        const std::string output = folder.path("a");
        CHECK_FALSE(best_draft(output));
        TrainRequest request = tiny_request(output, 6);
        request.settings.checkpoint.every = {1e-6};
        request.settings.checkpoint.keep_drafts = 10;
        request.settings.eval.every = {1e-6};
        request.settings.eval.max_fraction = 1;
        REQUIRE(run(request) == 0);
        // Not every step is saved: saves are written beside the training.
        const CheckpointStore store(output, 1, 1);
        std::vector<std::int64_t> saved;
        std::int64_t best_step = 0;
        double best = 0;
        for (const io::Json& eval : metrics(output, "eval")) {
            const double acceptance = eval.require_number("acceptance_length", "");
            const auto step = eval.require_integer("step", "");
            if (!fs::exists(store.folder_of(step) + "/draft")) {
                continue;
            }
            saved.push_back(step);
            if (acceptance >= best) {
                best = acceptance;
                best_step = step;
            }
        }
        REQUIRE(saved.size() >= 2);
        const auto found = best_draft(output);
        REQUIRE(found);
        CHECK(found->step == best_step);
        CHECK(found->acceptance_length == best);
        CHECK(fs::equivalent(output + "/best/draft", found->folder));

        // A better one among those of before; then the link goes to the next one when that is gone.
        const std::string first = store.folder_of(saved.front());
        std::ofstream(first + "/acceptance.json") << R"({"acceptance_length": 7.5})";
        point_to_best(output);
        CHECK(fs::read_symlink(output + "/best") == fs::path(first).filename());
        fs::remove_all(first);
        point_to_best(output);
        CHECK(fs::exists(output + "/best/draft/model.safetensors"));
        for (const std::int64_t step : saved) {
            fs::remove_all(store.folder_of(step));
        }
        point_to_best(output);
        CHECK_FALSE(fs::is_symlink(output + "/best"));
    }

    TEST_CASE("an unfinished run with the same settings is named, others are not") {
        const TemporaryFolder folder;
        const std::string data = folder.path("data.jsonl");
        fs::copy("test/golden/tiny-data.jsonl", data);
        const auto request_for = [&](const std::string& name) {
            TrainRequest request = tiny_request(folder.path(name), 2);
            request.settings.run.data = data;
            return request;
        };
        const auto unfinished = [&](TrainRequest request) {
            request.settings.train.max_steps = 4;
            const PreparedRun prepared = prepare_run(request.settings);
            return find_unfinished_runs(folder.path(""),
                                        identity_of(request.settings, prepared),
                                        prepared,
                                        request.settings);
        };
        CHECK(unfinished(request_for("new")).empty());
        REQUIRE(run(request_for("a")) == 0);
        TrainRequest other = request_for("b");
        other.settings.run.seed = 5;
        REQUIRE(run(other) == 0);
        fs::create_directory(folder.path("c"));
        std::ofstream(folder.path("c") + "/config.toml") << "x";
        // What cannot be looked at, such as a folder of another user, is passed over.
        fs::create_directory(folder.path("d"));
        fs::create_symlink("config.toml", folder.path("d") + "/config.toml");
        auto found = unfinished(request_for("new"));
        REQUIRE(found.size() == 1);
        CHECK(found[0].folder == folder.path("a"));
        CHECK(found[0].step == 2);
        CHECK_FALSE(found[0].running);
        CHECK(to_text(found[0]).ends_with("dflash --resume " + folder.path("a")));
        {
            const io::FolderLock lock(folder.path("a"));
            found = unfinished(request_for("new"));
            REQUIRE(found.size() == 1);
            CHECK(found[0].running);
            CHECK(to_text(found[0]).find("dflash status") != std::string::npos);
        }
        std::ofstream(data, std::ios::app) << R"({"prompt": "a b", "response": "b a c"})"
                                           << "\n";
        found = unfinished(request_for("new"));
        REQUIRE(found.size() == 1);
        CHECK(to_text(found[0]).ends_with("--extend-data"));
        {
            std::ofstream others(data);
            for (int n = 0; n < 40; ++n) {
                others << R"({"prompt": "a b", "response": "b a c)" << n << "\"}\n";
            }
        }
        CHECK(unfinished(request_for("new")).empty());

        // Not unfinished once its length is reached.
        fs::copy("test/golden/tiny-data.jsonl", data, fs::copy_options::overwrite_existing);
        CHECK(unfinished(request_for("new")).size() == 1);
        TrainRequest rest = request_for("a");
        rest.resume_folder = folder.path("a");
        rest.settings.train.max_steps = 4;
        REQUIRE(run(rest) == 0);
        CHECK(unfinished(request_for("new")).empty());
    }

    TEST_CASE("a damaged checkpoint is a data error that says where and what to do") {
        const TemporaryFolder folder;
        REQUIRE(run(tiny_request(folder.path("whole"), kSteps)) == 0);
        const std::string step = "/step-000002";

        struct Damage {
            std::string file;
            std::function<void(const std::string&)> apply;
            std::string message;  // of a checkpoint without checksums, as older ones are
            std::string with_checksums;
        };

        const auto remove_file = [](const std::string& path) { fs::remove(path); };
        const auto cut = [](const std::string& path) { fs::resize_file(path, 100); };
        const auto edit = [](const std::string& from, const std::string& to) {
            return [=](const std::string& path) { replace_text(path, from, to); };
        };
        for (const Damage& damage : std::vector<Damage>{
                 {"/state/optimizer.safetensors", remove_file, "cannot read", "is missing"},
                 {"/state/optimizer.safetensors",
                  cut,
                  "the file has 92 after the length",
                  "is damaged"},
                 {"/state/state.json", cut, "not JSON", "not JSON"},
                 {"/state/state.json",
                  edit("\"step\": 2", "\"step\": 3"),
                  "got 3, expected 2",
                  "is damaged"},
                 {"/state/state.json",
                  edit("\"rows\": ", "\"rows\": -"),
                  "expected 0 or more",
                  "is damaged"},
                 {"/state/state.json",
                  edit("\"epoch\": ", "\"epoch\": -5"),
                  "expected 0 or more",
                  "is damaged"},
                 {"/draft/config.json", remove_file, "cannot read", "is missing"},
             }) {
            for (const bool listed : {true, false}) {
                CAPTURE(damage.file);
                CAPTURE(damage.message);
                CAPTURE(listed);
                const std::string run_folder = folder.path("damaged");
                fs::remove_all(run_folder);
                fs::copy(folder.path("whole"),
                         run_folder,
                         fs::copy_options::recursive | fs::copy_options::copy_symlinks);
                if (!listed) {
                    fs::remove(run_folder + step + "/checksums.xxh64");
                    replace_text(run_folder + step + "/state/state.json",
                                 ",\n  \"checksums\": \"checksums.xxh64\"",
                                 "");
                }
                damage.apply(run_folder + step + damage.file);
                try {
                    run(resume_request(run_folder));
                    FAIL("expected an error");
                } catch (const Error& error) {
                    CHECK(error.kind() == ErrorKind::Data);
                    CHECK(std::string(error.what())
                              .find(listed ? damage.with_checksums : damage.message) !=
                          std::string::npos);
                    CHECK(error.parts().where.find(step + damage.file) != std::string::npos);
                    CHECK(error.parts().hint.find("The checkpoint is damaged") == 0);
                }
            }
        }
    }
}

}  // namespace dflash::train
