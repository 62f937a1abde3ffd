// SPDX-License-Identifier: Apache-2.0
// What bad input gets: the promised exit code, a message that says where and what, and nothing
// half-written.
#include "captured_run.hpp"

#include <cstdint>
#include <cstring>
#include <doctest/doctest.h>
#include <filesystem>
#include <fstream>
#include <functional>
#include <sstream>
#include <string>
#include <unistd.h>
#include <utility>
#include <vector>

namespace dflash::cli {
namespace {

namespace fs = std::filesystem;

// A folder with a copy of the tiny target and its data, to be damaged.
class Playground {
  public:
    Playground() {
        static int count = 0;
        folder_ = fs::temp_directory_path() / ("dflash-bad-input-" + std::to_string(::getpid()) +
                                               "-" + std::to_string(count++));
        fs::create_directories(folder_);
        fs::copy("test/golden/targets/T1", folder_ / "target", fs::copy_options::recursive);
        fs::copy("test/golden/tiny-data.jsonl", folder_ / "data.jsonl");
    }

    ~Playground() {
        std::error_code ignored;
        fs::remove_all(folder_, ignored);
    }

    Playground(const Playground&) = delete;
    Playground& operator=(const Playground&) = delete;

    std::string path(const std::string& name) const { return (folder_ / name).string(); }

    void write(const std::string& name, const std::string& text) const {
        std::ofstream(path(name), std::ios::binary) << text;
    }

    std::string read(const std::string& name) const {
        std::ifstream file(path(name), std::ios::binary);
        std::ostringstream text;
        text << file.rdbuf();
        return text.str();
    }

    /// Replaces text in a file; it must be there.
    void replace(const std::string& name, const std::string& from, const std::string& to) const {
        std::string text = read(name);
        const std::size_t at = text.find(from);
        REQUIRE_MESSAGE(at != std::string::npos, name << " holds no " << from);
        write(name, text.replace(at, from.size(), to));
    }

    /// Runs two steps on this target and data with further arguments.
    Outcome run(const std::vector<std::string>& more = {}) const {
        std::vector<std::string> arguments = {"--config",
                                              "configs/tiny-cpu.toml",
                                              "--gpus",
                                              "cpu:2",
                                              "--target",
                                              path("target"),
                                              "--data",
                                              path("data.jsonl"),
                                              "--output",
                                              path("run"),
                                              "--set",
                                              "train.max_steps=2"};
        arguments.insert(arguments.end(), more.begin(), more.end());
        return captured_run(std::move(arguments));
    }

  private:
    fs::path folder_;
};

void expect(const Playground& at,
            const Outcome& outcome,
            int code,
            const std::vector<std::string>& mentions) {
    CAPTURE(outcome.output);
    CHECK(outcome.code == code);
    for (const std::string& mention : mentions) {
        CAPTURE(mention);
        CHECK(outcome.output.find(mention) != std::string::npos);
    }
    CHECK_FALSE(fs::exists(at.path("run") + "/latest"));
    CHECK_FALSE(fs::exists(at.path("run") + "/metrics.jsonl"));
}

}  // namespace

TEST_SUITE("cli.bad_input") {
    TEST_CASE("the undamaged playground trains") {
        const Playground at;
        const Outcome outcome = at.run();
        CAPTURE(outcome.output);
        CHECK(outcome.code == 0);
        CHECK(fs::exists(at.path("run") + "/latest/draft/model.safetensors"));
    }

    TEST_CASE("a target that is not there") {
        const Playground at;
        expect(at, at.run({"--target", at.path("nowhere")}), 2, {"nowhere"});
        expect(at, at.run({"--target", "Nobody/Nothing-1B"}), 2, {"hf download Nobody/Nothing-1B"});
    }

    TEST_CASE("a folder without config.json, and one with a broken one") {
        const Playground at;
        at.write("target/config.json", "{\"model_type\": ");
        expect(at, at.run(), 2, {"config.json"});
        fs::remove(at.path("target/config.json"));
        expect(at, at.run(), 2, {"config.json"});
    }

    TEST_CASE("an unsupported architecture is named, with those that are supported") {
        const Playground at;
        at.replace("target/config.json", "Qwen3ForCausalLM", "MambaForCausalLM");
        at.replace("target/config.json", "\"qwen3\"", "\"mamba\"");
        expect(at, at.run(), 2, {"MambaForCausalLM", "Qwen3ForCausalLM", "LlamaForCausalLM"});
    }

    TEST_CASE("a missing weight, a shard that is cut, and a hostile header") {
        const Playground at;
        const std::string shard = "target/model-00001-of-00002.safetensors";
        const std::string whole = at.read(shard);
        at.write(shard, whole.substr(0, whole.size() / 2));
        expect(at, at.run(), 3, {"model-00001-of-00002.safetensors"});
        std::string hostile = whole;
        const std::uint64_t huge = ~std::uint64_t{0} / 2;
        std::memcpy(hostile.data(), &huge, sizeof huge);
        at.write(shard, hostile);
        expect(at, at.run(), 3, {"model-00001-of-00002.safetensors"});
        at.write(shard, whole);
        at.replace(shard, "layers.0.self_attn.q_norm.weight", "layers.0.self_attn.x_norm.weight");
        expect(at, at.run(), 3, {"q_norm"});
    }

    TEST_CASE("a tokenizer of another kind, or none") {
        const Playground at;
        fs::remove(at.path("target/tokenizer.json"));
        at.write("target/tokenizer.json", R"({"model": {"type": "WordPiece", "vocab": {"a": 0}}})");
        expect(at, at.run(), 2, {"WordPiece"});
        fs::remove(at.path("target/tokenizer.json"));
        expect(at, at.run(), 2, {"tokenizer.json"});
    }

    TEST_CASE("bad lines are judged before the first step, with path, line and column") {
        const Playground at;
        at.write("data.jsonl", at.read("data.jsonl") + "{\"messages\": oops}\n");
        expect(at, at.run(), 3, {"data.jsonl:97:"});
        // The same line is skipped and reported where such a share is allowed.
        const Outcome allowed = at.run({"--set", "data.max_bad_fraction=0.05"});
        CAPTURE(allowed.output);
        CHECK(allowed.code == 0);
        CHECK(allowed.output.find("bad_json") != std::string::npos);
        CHECK(allowed.output.find("data.jsonl:97:") != std::string::npos);
    }

    TEST_CASE("files with nothing in them, nothing known in them, or nothing to learn from") {
        const Playground at;
        at.write("data.jsonl", "");
        expect(at, at.run(), 3, {"data.jsonl"});
        at.write("data.jsonl", "{\"a\": 1}\n{\"b\": 2}\n");
        expect(at, at.run(), 3, {"data.jsonl:1:"});
        at.write("data.jsonl",
                 R"({"messages": [{"role": "user", "content": "hello"}]})"
                 "\n");
        expect(at, at.run({"--set", "data.max_bad_fraction=1"}), 3, {"data.jsonl"});
        expect(at, at.run({"--data", at.path("missing.jsonl")}), 2, {"missing.jsonl"});
        expect(at, at.run({"--data", at.path("target")}), 2, {"target", "are a folder"});
    }

    TEST_CASE("an output folder that is used, or cannot be written") {
        const Playground at;
        fs::create_directories(at.path("used"));
        at.write("used/file", "x");
        expect(at, at.run({"--output", at.path("used")}), 2, {"used", "--resume"});
        at.write("file", "x");
        expect(at, at.run({"--output", at.path("file") + "/run"}), 6, {"file"});
    }

    TEST_CASE("what a terminal would obey is shown, wherever it comes from") {
        const Playground at;
        const std::string evil = "\x1b]0;owned\x07\x1b[2J";
        for (const char* option : {"--target",
                                   "--data",
                                   "--gpus",
                                   "--config",
                                   "--resume",
                                   "--set",
                                   "--init",
                                   "--lr",
                                   "--no-such-option"}) {
            CAPTURE(option);
            const Outcome outcome = at.run({option, at.path("x" + evil) + "/y"});
            CHECK(outcome.code != 0);
            CHECK(outcome.output.find('\x1b') == std::string::npos);
            CHECK(outcome.output.find('\x07') == std::string::npos);
        }
        // A folder of that name works all the same.
        const Outcome outcome = at.run({"--output", at.path("run" + evil)});
        CHECK(outcome.code == 0);
        CHECK(outcome.output.find("run\\x1b]0;owned\\x07") != std::string::npos);
        CHECK(outcome.output.find('\x1b') == std::string::npos);
    }

    TEST_CASE("a GPU that is not there") {
        const Playground at;
        expect(at, at.run({"--gpus", "97"}), 4, {"97"});
    }

    TEST_CASE("a plan that does not fit") {
        const Playground at;
        expect(at, at.run({"--set", "data.row_anchors=1000000"}), 2, {"does not fit", "GiB"});
    }

    TEST_CASE("a learning rate with which the drafter diverges") {
        const Playground at;
        const Outcome outcome = at.run({"--set", "train.max_steps=40", "--lr", "1e30"});
        CAPTURE(outcome.output);
        CHECK(outcome.code == 5);
        for (const char* part : {"is skipped, nothing is changed by it",
                                 "kind        numeric (exit code 5)",
                                 "what        3 steps in a row were skipped",
                                 "where       samples ",
                                 "data.jsonl:",
                                 "cause       the drafter diverged",
                                 "lower train.lr"}) {
            CAPTURE(part);
            CHECK(outcome.output.find(part) != std::string::npos);
        }
        CHECK_FALSE(fs::exists(at.path("run") + "/latest"));
        std::istringstream metrics(at.read("run/metrics.jsonl"));
        int skipped = 0;
        for (std::string line; std::getline(metrics, line);) {
            skipped += line.find("\"skipped\": true") == std::string::npos ? 0 : 1;
        }
        CHECK(skipped == 3);
    }

    TEST_CASE("a resume from something that is no run") {
        const Playground at;
        const Outcome outcome = at.run({"--resume", at.path("target")});
        CHECK(outcome.code == 2);
        CHECK(outcome.output.find("config.toml") != std::string::npos);
    }

    TEST_CASE(
        "the last eight lines of a failed run say kind, what, where, cause, what to do and log") {
        const Playground at;
        const Outcome outcome = at.run({"--target", at.path("nowhere")});
        std::vector<std::string> lines;
        std::istringstream text(outcome.output);
        for (std::string line; std::getline(text, line);) {
            lines.push_back(line);
        }
        REQUIRE(lines.size() >= 8);
        std::string last;
        for (std::size_t i = lines.size() - 8; i < lines.size(); ++i) {
            last += lines[i] + "\n";
        }
        for (const char* part : {"kind", "what", "where", "cause", "do", "log", "configuration"}) {
            CAPTURE(part);
            CAPTURE(last);
            CHECK(last.find(part) != std::string::npos);
        }
    }
}

}  // namespace dflash::cli
