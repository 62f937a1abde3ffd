// SPDX-License-Identifier: Apache-2.0
#include "tiny_run.hpp"

#include <atomic>
#include <doctest/doctest.h>
#include <fstream>
#include <sstream>
#include <unistd.h>

namespace dflash::train {

TemporaryFolder::TemporaryFolder() {
    static std::atomic<int> count = 0;
    folder_ = std::filesystem::temp_directory_path() /
              ("dflash-train-test-" + std::to_string(::getpid()) + "-" + std::to_string(count++));
    std::filesystem::create_directories(folder_);
}

TemporaryFolder::~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
}

TrainRequest tiny_request(const std::string& output, std::int64_t steps) {
    TrainRequest request;
    Settings& s = request.settings;
    s.run.target = "test/golden/targets/T1";
    s.run.data = "test/golden/tiny-data.jsonl";
    s.run.gpus = "cpu:2";
    s.run.output = output;
    s.train.rows_per_step = 4;
    s.train.max_steps = steps;
    s.train.epochs = 24;
    s.train.lr = 3e-3;
    s.draft.num_layers = 2;
    s.draft.block_size = 8;
    s.draft.target_layer_ids = {{1, 2, 3}};
    s.draft.num_heads = 4;
    s.draft.num_kv_heads = 2;
    s.draft.head_dim = 32;
    s.draft.anchors = 16;
    s.data.row_tokens = 256;
    s.data.row_anchors = 64;
    s.data.max_length = 256;
    s.data.window = 32;
    s.data.check_answers = 0;  // they are not the random target's
    s.eval.every = {3600};
    s.eval.acceptance_prompts = 0;  // costs more than all of the rest
    s.report.every = {3600};
    s.report.line_every = {3600};
    return request;
}

void set_roles(TrainRequest& request,
               int num_devices,
               const std::string& target_positions,
               const std::string& draft_positions) {
    request.settings.run.gpus = "cpu:" + std::to_string(num_devices);
    request.settings.run.target_gpus = target_positions;
    request.settings.run.draft_gpus = draft_positions;
}

int run(const TrainRequest& request) {
    StopSignals signals;
    return train(request, signals);
}

std::vector<io::Json> metrics(const std::string& run_folder, const std::string& kind) {
    std::ifstream file(run_folder + "/metrics.jsonl");
    REQUIRE(file.good());
    std::vector<io::Json> found;
    for (std::string line; std::getline(file, line);) {
        io::Json object = io::Json::parse(line, "metrics.jsonl");
        if (object.require_string("kind", "metrics.jsonl") == kind) {
            found.push_back(std::move(object));
        }
    }
    return found;
}

std::vector<double> losses(const std::string& run_folder) {
    std::vector<double> values;
    for (const io::Json& step : metrics(run_folder, "step")) {
        values.push_back(step.require_number("loss", "metrics.jsonl"));
    }
    return values;
}

std::string file_bytes(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    REQUIRE_MESSAGE(file.good(), path);
    std::ostringstream bytes;
    bytes << file.rdbuf();
    return bytes.str();
}

}  // namespace dflash::train
