// SPDX-License-Identifier: Apache-2.0
#include "byte_tokenizer.hpp"
#include "fuzz_loop.hpp"
#include "golden_lines.hpp"
#include "temporary_files.hpp"

#include <dflash/data/dataset.hpp>

#include <doctest/doctest.h>
#include <memory>

namespace dflash {

namespace {

constexpr std::size_t kLinesPerFile = 40;

// Conversations with tools, reasoning and parts, and rows of other shapes.
std::vector<std::string> seeds() {
    std::vector<std::string> rows = {
        R"({"conversations":[{"from":"system","value":"s"},{"from":"human","value":"q"},{"from":"gpt","value":"a"}]})",
        R"({"prompt":"q","response":"a","system":"s","tools":[{"name":"f"}]})",
        R"({"instruction":"q","input":"more","output":"a","history":[["p","b"]]})",
        R"({"text":"<|im_start|>assistant\nyo<|im_end|>"})",
        R"({"input_ids":[1,2,3,4],"labels":[-100,2,3,-100],"attention_mask":[1,1,1,0]})",
        R"([{"role":"user","content":[{"type":"text","text":"a"}]},{"role":"assistant","content":"b","weight":0},
            {"role":"assistant","content":"c"}])",
        R"({"turns":["a","b"]})"};
    for (std::string& row : rows) {
        row = io::Json::parse(row, "seed").dump();
    }
    for (const io::Json& c : data::testing::read_cases("test/golden/text/chat-qwen3.jsonl")) {
        if (c.dump().size() < 4000) {
            io::Json row = io::Json::object({{"messages", *c.find("messages")}});
            if (const io::Json* tools = c.find("tools"); tools != nullptr && !tools->is_null()) {
                row.set("tools", *tools);
            }
            rows.push_back(row.dump());
        }
    }
    return rows;
}

std::string make_file(const std::vector<std::string>& rows, RandomStream& random) {
    std::string file;
    for (std::size_t i = 0; i < kLinesPerFile; ++i) {
        file += test::mutate_json_text(rows, random);
        file += random.below(30) == 0 ? "" : random.below(10) == 0 ? "\r\n" : "\n";
    }
    return file;
}

}  // namespace

TEST_SUITE("fuzz.rows") {
    TEST_CASE("fuzz: files of damaged rows are judged row by row in every chat format") {
        const std::vector<std::string> rows = seeds();
        const auto tokenizer = std::make_shared<const data::Tokenizer>(
            data::testing::byte_tokenizer({"<|im_start|>",
                                           "<|im_end|>",
                                           "<think>",
                                           "</think>",
                                           "<|start_header_id|>",
                                           "<|end_header_id|>",
                                           "<|eot_id|>",
                                           "<|start|>",
                                           "<|end|>",
                                           "<|message|>",
                                           "<|channel|>",
                                           "<|call|>",
                                           "<|return|>"}));
        std::vector<std::shared_ptr<const data::ChatFormat>> formats;
        for (const std::string& name : data::chat_format_names()) {
            formats.push_back(data::make_chat_format(name,
                                                     {.begin = "",
                                                      .system_start = "S",
                                                      .system_end = "s",
                                                      .user_start = "U",
                                                      .user_end = "u",
                                                      .assistant_start = "A",
                                                      .assistant_end = "a\n",
                                                      .tool_start = "T",
                                                      .tool_end = "t"}));
        }
        const data::testing::TemporaryFiles folder;
        std::size_t turn = 0;
        test::fuzz(
            {.name = "rows",
             .make_input =
                 [&](RandomStream& random) {
                     turn = random.below(formats.size());
                     // Now and then too few rows to begin with.
                     return random.below(20) == 0 ? test::mutate_json_text(rows, random)
                                                  : make_file(rows, random);
                 },
             .read =
                 [&](const std::string& input) {
                     data::DatasetOptions options;
                     options.max_length = 200;
                     options.max_bad_fraction = 1;
                     options.num_threads = 1;
                     const data::Dataset dataset = data::Dataset::open(
                         {folder.write("rows.jsonl", input)}, tokenizer, formats[turn], options);
                     for (const SampleId id : dataset.usable()) {
                         const data::Sample sample = dataset.encode(id);
                         REQUIRE(sample.tokens.size() == sample.trainable.size());
                         REQUIRE(sample.tokens.size() <= 200);
                     }
                     CHECK_FALSE(dataset.report().to_markdown().empty());
                 }});
    }
}

}  // namespace dflash
