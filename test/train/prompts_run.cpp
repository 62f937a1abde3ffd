// SPDX-License-Identifier: Apache-2.0
#include "prompts_run.hpp"

#include <doctest/doctest.h>
#include <fmt/format.h>
#include <fstream>

namespace dflash::train {

std::string prompts(int first, int end) {
    std::string text;
    for (int i = first; i < end; ++i) {
        text += fmt::format(R"({{"id": {0}, "prompt": "Tell me about {0}."}})"
                            "\n",
                            i);
    }
    return text;
}

std::string answered(int first, int end) {
    std::string text;
    for (int i = first; i < end; ++i) {
        text += fmt::format(R"({{"id": {0}, "prompt": "What is {0}?", "response": "A number."}})"
                            "\n",
                            i);
    }
    return text;
}

void write(const std::string& path, const std::string& text) {
    std::ofstream(path, std::ios::binary) << text;
}

TrainRequest request_for(const TemporaryFolder& folder, const std::string& name) {
    TrainRequest request = tiny_request(folder.path(name), 1);
    Settings& s = request.settings;
    s.run.data = folder.path("rows.jsonl");
    s.train.max_steps.reset();
    s.train.epochs = 2;
    s.train.rows_per_step = 3;
    s.data.window = 8;
    s.cache.dir = folder.path("cache");
    s.generate.max_new_tokens = 24;
    s.generate.temperature = 0.9;
    return request;
}

std::vector<io::Json> lines_of(const std::string& path) {
    std::vector<io::Json> rows;
    std::ifstream file(path);
    REQUIRE_MESSAGE(file.good(), path);
    std::string header;
    std::getline(file, header);
    for (std::string line; std::getline(file, line);) {
        rows.push_back(io::Json::parse(line, path));
    }
    return rows;
}

std::int64_t num_generated(const std::string& run_folder) {
    std::int64_t count = 0;
    for (const io::Json& line : lines_of(run_folder + "/answers.jsonl")) {
        count += line.find("cached") == nullptr ? 1 : 0;
    }
    return count;
}

}  // namespace dflash::train
