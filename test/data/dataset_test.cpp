// SPDX-License-Identifier: Apache-2.0
#include "byte_tokenizer.hpp"
#include "temporary_files.hpp"

#include <dflash/core/error.hpp>
#include <dflash/data/absent_format.hpp>
#include <dflash/data/anchors.hpp>
#include <dflash/data/dataset.hpp>

#include <algorithm>
#include <chrono>
#include <doctest/doctest.h>
#include <filesystem>
#include <fmt/format.h>
#include <fstream>
#include <numeric>
#include <thread>

namespace dflash::data {

using testing::TemporaryFiles;

namespace {

std::shared_ptr<const Tokenizer> tokenizer() {
    static const auto shared = std::make_shared<const Tokenizer>(testing::byte_tokenizer());
    return shared;
}

std::shared_ptr<const ChatFormat> format_of(std::string_view name = "smollm2") {
    return make_chat_format(name);
}

Dataset open(const std::vector<std::string>& paths,
             DatasetOptions options = {},
             std::string_view format = "smollm2") {
    return Dataset::open(
        {paths.begin(), paths.end()}, tokenizer(), format_of(format), std::move(options));
}

std::map<std::string, std::int64_t> refused_of(const DataReport& report) {
    std::map<std::string, std::int64_t> counts;
    for (const auto& [kind, group] : report.refused) {
        counts[kind] = group.rows;
    }
    return counts;
}

// The error of opening; fails if there is none.
Error error_of(const std::vector<std::string>& files,
               DatasetOptions options = {},
               std::string_view format = "smollm2") {
    try {
        open(files, options, format);
    } catch (const Error& error) {
        return error;
    }
    FAIL("opened");
    return {ErrorKind::Internal, {.what = {}, .where = {}, .cause = {}, .hint = {}}};
}

bool mentions(const Error& error, std::string_view text) {
    return std::string_view(error.what()).find(text) != std::string_view::npos;
}

std::string pair_line(std::string_view prompt, std::string_view response) {
    return fmt::format(R"({{"prompt": "{}", "response": "{}"}})", prompt, response) + "\n";
}

// A row whose conversation has its own system message, so that few bytes are not its own.
std::string short_line(std::string_view prompt, std::string_view response) {
    return fmt::format(R"({{"system": "s", "prompt": "{}", "response": "{}"}})", prompt, response) +
           "\n";
}

// Trained tokens as text.
std::string trained_text(const Sample& sample) {
    std::vector<TokenId> ids;
    for (std::size_t i = 0; i < sample.tokens.size(); ++i) {
        if (sample.trainable[i] != 0) {
            ids.push_back(sample.tokens[i]);
        }
    }
    return tokenizer()->decode(ids);
}

constexpr std::string_view kPrompt = R"({"prompt": "only a question"})"
                                     "\n";
constexpr std::string_view kBadJson = "{\"prompt\": \n";
constexpr std::string_view kBadRole = R"({"messages": [{"role": "alien", "content": "x"}]})"
                                      "\n";

}  // namespace

TEST_SUITE("data.dataset") {
    TEST_CASE("dataset: a sample is the rendered text, with the answers trained") {
        const TemporaryFiles files;
        const std::string path = files.write(
            "a.jsonl",
            R"({"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Héllo"}, {"role": "user", "content": "Bye"}, {"role": "assistant", "content": "So long"}]})"
            "\n");
        const Dataset dataset = open({path});
        REQUIRE(dataset.usable() == std::vector<SampleId>{0});
        const Sample sample = dataset.encode(0);
        CHECK(sample.ref.id == 0);
        CHECK(sample.dropped.empty());
        REQUIRE(sample.tokens.size() == sample.trainable.size());
        CHECK(static_cast<std::size_t>(dataset.lengths().at(0)) == sample.tokens.size());
        CHECK(tokenizer()->decode(sample.tokens) ==
              "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging "
              "Face<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nHéllo"
              "<|im_end|>\n<|im_start|>user\nBye<|im_end|>\n<|im_start|>assistant\nSo long"
              "<|im_end|>\n");
        CHECK(trained_text(sample) == "Héllo<|im_end|>So long<|im_end|>");
        const DataReport& report = dataset.report();
        CHECK(report.tokens == static_cast<std::int64_t>(sample.tokens.size()));
        CHECK(report.trainable_tokens == 7 + 8);
        CHECK(report.anchors == 6 + 7);
        CHECK(report.longest == report.tokens);
        CHECK(report.num_refused() == 0);
    }

    TEST_CASE("dataset: ids number the rows of all files, blank lines left out") {
        const TemporaryFiles files;
        // gzip of {"prompt": "Hi", "response": "Hello"} and a line end, by Python's gzip.compress
        // with mtime 0.
        constexpr unsigned char kPacked[] = {
            0x1f, 0x8b, 0x08, 0x00, 0x00, 0x00, 0x00, 0x00, 0x02, 0x03, 0xab, 0x56, 0x2a, 0x28,
            0xca, 0xcf, 0x2d, 0x28, 0x51, 0xb2, 0x52, 0x50, 0xf2, 0xc8, 0x54, 0xd2, 0x51, 0x50,
            0x2a, 0x4a, 0x2d, 0x2e, 0xc8, 0xcf, 0x2b, 0x4e, 0x05, 0x8b, 0xa4, 0xe6, 0xe4, 0xe4,
            0x2b, 0xd5, 0x72, 0x01, 0x00, 0x3d, 0xde, 0x27, 0x5d, 0x26, 0x00, 0x00, 0x00};
        const std::vector<std::string> paths = {
            files.write("a.jsonl",
                        "\n" + pair_line("one", "answer one") + " \t\r\n" + std::string(kPrompt) +
                            pair_line("two", "answer two")),
            files.write("b.jsonl.gz", {reinterpret_cast<const char*>(kPacked), sizeof(kPacked)}),
            files.write("c.jsonl", "\xef\xbb\xbf" + pair_line("three", "answer three") + "\n")};
        const Dataset dataset = open(paths, {.max_bad_fraction = 0.5});
        CHECK(dataset.usable() == std::vector<SampleId>{0, 2, 3, 4});
        CHECK(dataset.place_of(0) == paths[0] + ":2");
        CHECK(dataset.place_of(2) == paths[0] + ":5");
        CHECK(dataset.place_of(3) == paths[1] + ":1");
        CHECK(dataset.place_of(4) == paths[2] + ":1");
        CHECK(trained_text(dataset.encode(2)) == "answer two<|im_end|>");
        CHECK(trained_text(dataset.encode(3)) == "Hello<|im_end|>");
        CHECK(trained_text(dataset.encode(4)) == "answer three<|im_end|>");
        CHECK(dataset.report().lines == 5);
        CHECK(dataset.report().blank == 3);
        CHECK(dataset.report().usable == 4);
        CHECK_THROWS_AS(dataset.encode(1), Error);
        CHECK_THROWS_AS(dataset.encode(5), Error);
    }

    TEST_CASE("dataset: refused rows are counted by kind, with the place of the first") {
        const TemporaryFiles files;
        const std::string path = files.write(
            "a.jsonl",
            pair_line("a", "b") + std::string(kBadRole) + std::string(kBadJson) +
                std::string(kPrompt) + std::string(kBadRole) +
                R"({"prompt": "q", "response": "a", "x": 0123})"
                "\n" +
                R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "tool_calls": [{"name": "f", "arguments": {}}]}]})"
                "\n" +
                R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", "weight": 0}]})"
                "\n" +
                R"({"prompt": "cut in the mid)");
        const Dataset dataset = open({path}, {.max_bad_fraction = 0.9});
        const DataReport& report = dataset.report();
        CHECK(refused_of(report) == std::map<std::string, std::int64_t>{{"bad_json", 2},
                                                                        {"nothing_trained", 1},
                                                                        {"prompt_only", 1},
                                                                        {"refused_by_format", 1},
                                                                        {"truncated", 1},
                                                                        {"unknown_role", 2}});
        CHECK(
            report.refused.at("unknown_role").message.starts_with(path + ":2:1: messages[0].role"));
        CHECK(report.refused.at("bad_json").message.starts_with(path + ":3:11: not JSON"));
        CHECK(report.refused.at("truncated").message.starts_with(path + ":9:"));
        CHECK(report.refused.at("refused_by_format").message.find("tool calls") !=
              std::string::npos);
        CHECK(report.num_refused() == 8);
    }

    TEST_CASE("dataset: finished text and tokens without a mask are trained behind the headers") {
        // Pain: of several lines of finished text only the first one was kept.
        const TemporaryFiles files;
        const std::string chat =
            "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\nyo yo<|im_end|>\n";
        std::string text;
        for (int i = 0; i < 3; ++i) {
            text +=
                io::Json::object({{"id", io::Json::integer(i)}, {"text", io::Json::string(chat)}})
                    .dump() +
                "\n";
        }
        text += R"({"text": "Plain text, all of it."})"
                "\n";
        std::vector<io::Json> ids;
        for (const TokenId id : tokenizer()->encode(chat).ids) {
            ids.push_back(io::Json::integer(id));
        }
        text += io::Json::object({{"input_ids", io::Json::array(std::move(ids))}}).dump() + "\n";
        const Dataset dataset = open({files.write("a.jsonl", text)});
        REQUIRE(dataset.usable().size() == 5);
        for (const SampleId id : {0, 1, 2, 4}) {
            CAPTURE(id);
            const Sample sample = dataset.encode(id);
            CHECK(tokenizer()->decode(sample.tokens) == chat);
            CHECK(trained_text(sample) == "yo yo<|im_end|>");
        }
        CHECK(trained_text(dataset.encode(3)) == "Plain text, all of it.");
        CHECK(dataset.report().shapes.at("text").usable == 4);
        CHECK(dataset.report().shapes.at("input_ids").usable == 1);
    }

    TEST_CASE("dataset: tokens with a mask need no chat format, all other rows do") {
        // Pain: rows that were tokenised already demanded a chat template.
        const TemporaryFiles files;
        const std::string tokens = R"({"input_ids": [1, 2, 3, 4], "loss_mask": [0, 1, 1, 1]})"
                                   "\n";
        const std::shared_ptr<const ChatFormat> absent = make_absent_format(
            {ErrorKind::Config,
             {.what = "no such template", .where = {}, .cause = {}, .hint = {}}});
        const Dataset dataset =
            Dataset::open({files.write("a.jsonl", tokens)}, tokenizer(), absent, {});
        CHECK(dataset.usable().size() == 1);
        CHECK(dataset.encode(0).trainable == std::vector<std::uint8_t>{0, 1, 1, 1});
        for (const std::string& other : {pair_line("a", "b"),
                                         std::string("{\"text\": \"a b c\"}\n"),
                                         std::string("{\"input_ids\": [1, 2]}\n")}) {
            CAPTURE(other);
            CHECK_THROWS_WITH_AS(
                Dataset::open({files.write("b.jsonl", tokens + other)}, tokenizer(), absent, {}),
                "no such template.",
                Error);
        }
    }

    TEST_CASE("dataset: too many refused rows end the run before it begins") {
        const TemporaryFiles files;
        std::string text;
        for (int i = 0; i < 98; ++i) {
            text += pair_line("question", "answer");
        }
        const std::string path =
            files.write("a.jsonl", text + std::string(kBadJson) + std::string(kBadRole));
        CHECK(open({path}, {.max_bad_fraction = 0.02}).report().usable == 98);
        const Error error = error_of({path}, {.max_bad_fraction = 0.0199});
        CHECK(error.kind() == ErrorKind::Data);
        CHECK(mentions(error, "2 of 100 rows refused (2.00 %)"));
        CHECK(mentions(error, "bad_json 1, unknown_role 1"));
        CHECK(mentions(error, path + ":99:11: not JSON"));
        CHECK(mentions(error, path + ":100:1: messages[0].role is \"alien\""));
        CHECK(mentions(error, "data.max_bad_fraction"));
    }

    TEST_CASE("dataset: files that hold no rows are refused by name") {
        const TemporaryFiles files;
        const std::string good = files.write("good.jsonl", pair_line("a", "b"));

        struct Case {
            std::string_view name;
            std::string bytes;
            std::string_view mention;
        };

        for (const Case& c : std::vector<Case>{
                 {"empty.jsonl", "", "Write the file again"},
                 {"blank.jsonl", "\n \n\t\r\n", "only blank lines"},
                 {"utf16.jsonl", std::string("\xff\xfe{\0\"\0a\0", 8), "UTF-16"},
                 {"parquet.jsonl", "PAR1\x15\x04", "Parquet"},
                 {"array.json", "[\n  {\"prompt\": \"a\"}\n  {\"prompt\": \"b\"}\n]\n", "a comma"},
             }) {
            CAPTURE(c.name);
            const std::string path = files.write(std::string(c.name), c.bytes);
            const Error error = error_of({good, path});
            CHECK(error.kind() == ErrorKind::Data);
            CHECK(mentions(error, path));
            CHECK(mentions(error, c.mention));
        }
        const Error missing = error_of({good, files.folder() + "/missing.jsonl"});
        CHECK(missing.kind() == ErrorKind::Config);
        CHECK(mentions(missing, "missing.jsonl"));
    }

    TEST_CASE("dataset: a set without a usable row or a supervised token is an error") {
        const TemporaryFiles files;

        struct Case {
            std::string text;
            std::string_view mention;
        };

        const std::string weight_0 =
            R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", "weight": 0}]})"
            "\n";
        for (
            const Case& c : std::vector<Case>{
                {std::string(kPrompt) + std::string(kPrompt),
                 "no usable row: 2 of 2 rows refused (prompt_only 2)"},
                {std::string(kBadJson) + weight_0, "no usable row"},
                {weight_0 + weight_0, "no row has a supervised token"},
                // Reasoning is all there is, and the format leaves it out: only the end of the
                // turn is trained.
                {R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "", "reasoning_content": "r"}]})"
                 "\n",
                 "no supervised token"},
            }) {
            const std::string path = files.write("a.jsonl", c.text);
            CAPTURE(c.text);
            const Error error = error_of({path}, {.max_bad_fraction = 1});
            CHECK(error.kind() == ErrorKind::Data);
            CAPTURE(error.what());
            CHECK(mentions(error, c.mention));
            CHECK(mentions(error, path));
        }
    }

    TEST_CASE("dataset: long samples are cut at the end, and refused if no answer is left") {
        const TemporaryFiles files;
        const std::string path =
            files.write("a.jsonl",
                        short_line("q", "a short answer") + short_line("q", std::string(200, 'x')) +
                            short_line(std::string(200, 'y'), "answer"));
        const Dataset dataset = open({path}, {.max_length = 60, .max_bad_fraction = 0.5});
        CHECK(dataset.usable() == std::vector<SampleId>{0, 1});
        const DataReport& report = dataset.report();
        CHECK(report.cut.rows == 1);
        CHECK(report.cut.places == std::vector<std::string>{path + ":2"});
        const Sample cut = dataset.encode(1);
        CHECK(cut.tokens.size() == 60);
        CHECK(dataset.lengths().at(1) == 60);
        CHECK(trained_text(cut) == std::string(trained_text(cut).size(), 'x'));
        CHECK(report.longest == 60 + report.cut_tokens);
        CHECK(trained_text(cut).size() + static_cast<std::size_t>(report.cut_tokens) ==
              200 + 2);  // the end of the turn and the line feed are cut too
        CHECK(report.num_refused("cut_before_answer") == 1);
        CHECK(report.refused.at("cut_before_answer").message.find("data.max_length") !=
              std::string::npos);
    }

    TEST_CASE("dataset: a turn that runs past max_length keeps tokens and mask of one length") {
        // Pain: a row of 10,000 tokens at a length of 512 left both with different lengths.
        const TemporaryFiles files;
        const std::string path = files.write("a.jsonl", short_line("q", std::string(10'000, 'x')));
        const Dataset dataset = open({path}, {.max_length = 512});
        const Sample sample = dataset.encode(0);
        CHECK(sample.tokens.size() == 512);
        CHECK(sample.trainable.size() == 512);
        CHECK(sample.trainable.back() == 1);
        CHECK(dataset.report().cut_trainable > 9'400);
    }

    TEST_CASE("dataset: another length finds other rows, also where places of rows are kept") {
        // Pain: a cache whose key missed the length gave the rows of 2048 tokens at 4096.
        const TemporaryFiles files;
        const std::string path = files.write(
            "a.jsonl", short_line("q", std::string(3'000, 'x')) + short_line("q", "ab"));
        std::filesystem::last_write_time(
            path, std::filesystem::file_time_type::clock::now() - std::chrono::hours(1));
        DatasetOptions options;
        options.files = {.cache_folder = files.folder() + "/index", .index_from_bytes = 0};
        for (const std::int64_t max_length : {2048, 4096, 2048}) {
            options.max_length = max_length;
            const Dataset dataset = open({path}, options);
            CHECK(dataset.lengths().at(0) == std::min<std::int64_t>(max_length, 3'033));
            CHECK(dataset.encode(0).tokens.size() ==
                  static_cast<std::size_t>(dataset.lengths().at(0)));
        }
    }

    TEST_CASE("dataset: rows with too few trained tokens are left out if that is asked for") {
        const TemporaryFiles files;
        const std::string path = files.write(
            "a.jsonl",
            short_line("q", "yes") + short_line("q", std::string(40, 'x')) + short_line("q", "no"));
        CHECK(open({path}).usable().size() == 3);
        const Dataset dataset = open({path}, {.max_bad_fraction = 0, .min_trained_tokens = 10});
        CHECK(dataset.usable() == std::vector<SampleId>{1});
        CHECK(dataset.report().num_refused("too_few_trained") == 2);
        CHECK(dataset.report().num_bad() == 0);
        CHECK(dataset.report().refused.at("too_few_trained").places ==
              std::vector<std::string>{path + ":1", path + ":3"});
    }

    TEST_CASE("dataset: long rows are judged by many threads without one waiting for another") {
        // Pain: tokenizers' threads deadlocked on rows of more than 32,000 tokens.
        const TemporaryFiles files;
        std::string text;
        for (int i = 0; i < 40; ++i) {
            text += short_line("q", std::string(40'000, static_cast<char>('a' + i % 26)));
        }
        DatasetOptions options{.max_length = 100'000};
        options.num_threads = 8;
        const Dataset dataset = open({files.write("a.jsonl", text)}, options);
        CHECK(dataset.usable().size() == 40);
        CHECK(dataset.report().longest > 40'000);
    }

    TEST_CASE("dataset: a conversation that the format refuses costs that row only") {
        // Pain: a template that raised an error for one row ended the whole run.
        const TemporaryFiles files;
        const std::string path = files.write(
            "a.jsonl",
            short_line("q", "an answer") +
                R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "tool_calls": [{"name": "f", "arguments": {}}]}]})"
                "\n" +
                short_line("q", "another answer"));
        const Dataset dataset = open({path}, {.max_bad_fraction = 0.5});
        CHECK(dataset.usable() == std::vector<SampleId>{0, 2});
        CHECK(dataset.report().num_refused("refused_by_format") == 1);
    }

    TEST_CASE("dataset: anchors are counted as they will be drawn") {
        const TemporaryFiles files;
        const std::string path =
            files.write("a.jsonl", pair_line("q", std::string(50, 'x')) + pair_line("q", "abc"));
        const Dataset dataset = open({path}, {.max_anchors = 20});
        CHECK(dataset.report().anchors == 20 + 3);
        std::int64_t drawn = 0;
        for (const SampleId id : dataset.usable()) {
            drawn += static_cast<std::int64_t>(
                draw_anchors(dataset.encode(id).trainable, {.max_anchors = 20}, 1, 0, id).size());
        }
        CHECK(drawn == dataset.report().anchors);
    }

    TEST_CASE("dataset: the result does not depend on the number of threads") {
        const TemporaryFiles files;
        std::string text;
        for (int i = 0; i < 700; ++i) {
            text += i % 11 == 3   ? std::string(kBadRole)
                    : i % 17 == 5 ? std::string(kBadJson)
                                  : pair_line("q", std::string(static_cast<std::size_t>(i), 'x'));
        }
        text += pair_line("q", "x");
        const std::string path = files.write("a.jsonl", text);
        DatasetOptions options{.max_length = 500, .max_bad_fraction = 1};
        options.num_threads = 1;
        const Dataset serial = open({path}, options);
        for (const int num_threads : {2, 3, 8}) {
            options.num_threads = num_threads;
            const Dataset parallel = open({path}, options);
            CAPTURE(num_threads);
            CHECK(parallel.usable() == serial.usable());
            CHECK(parallel.lengths() == serial.lengths());
            CHECK(parallel.state() == serial.state());
            CHECK(parallel.report().to_markdown() == serial.report().to_markdown());
        }
        CHECK(serial.report().usable + serial.report().num_refused() == 701);
        CHECK(std::accumulate(serial.lengths().begin(), serial.lengths().end(), std::int64_t{0}) ==
              serial.report().tokens);
    }

    TEST_CASE("dataset: samples may be encoded by many threads at once") {
        const TemporaryFiles files;
        std::string text;
        for (int i = 0; i < 50; ++i) {
            text += pair_line("q", fmt::format("answer {}", i));
        }
        const std::string path = files.write("a.jsonl", text);
        const Dataset dataset = open({path});
        std::vector<int> right(4, 0);
        {
            std::vector<std::jthread> threads;
            threads.reserve(right.size());
            for (int& count : right) {
                threads.emplace_back([&dataset, &count] {
                    for (const SampleId id : dataset.usable()) {
                        count += trained_text(dataset.encode(id)) ==
                                         fmt::format("answer {}<|im_end|>", id)
                                     ? 1
                                     : 0;
                    }
                });
            }
        }
        CHECK(right == std::vector<int>(4, 50));
    }

    TEST_CASE("dataset: each row is rendered in the mode that a server made it in") {
        const TemporaryFiles files;
        const std::string own_block = R"({"prompt": "q", "response": "<think>\n\n</think>\n\na"})"
                                      "\n";
        const std::string path = files.write(
            "a.jsonl",
            pair_line("q", "a") + own_block +
                R"({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a", "thinking": "r"}]})"
                "\n");
        const Dataset dataset = open({path}, {}, "qwen3");
        CHECK(trained_text(dataset.encode(0)) == "a<|im_end|>");
        CHECK(trained_text(dataset.encode(1)) == "<think>\n\n</think>\n\na<|im_end|>");
        CHECK(trained_text(dataset.encode(2)) == "<think>\nr\n</think>\n\na<|im_end|>");

        DatasetOptions no_thinking;
        no_thinking.render.enable_thinking = false;
        const Dataset forced = open({path}, no_thinking, "qwen3");
        CHECK(trained_text(forced.encode(1)) == "a<|im_end|>");
    }

    TEST_CASE("dataset: the hash of the content changes with every byte and with the split") {
        const TemporaryFiles files;
        const std::string one = pair_line("a", "bc");
        const std::string two = pair_line("d", "ef");
        const std::string both = files.write("both.jsonl", one + two);
        const std::string first = files.write("first.jsonl", one);
        const std::string second = files.write("second.jsonl", two);
        const std::string changed = files.write("changed.jsonl", one + pair_line("d", "eg"));
        const DataState state = open({both}).state();
        CHECK(open({both}).state() == state);
        CHECK(open({changed}).state() != state);
        CHECK(open({first, second}).state() != state);
        CHECK(open({second, first}).state() != open({first, second}).state());
    }

    TEST_CASE("dataset: the report says whether the data is all right") {
        const TemporaryFiles files;
        const std::string good = files.write("good.jsonl", pair_line("a", std::string(50, 'x')));
        const std::string yes = open({good}).report().to_markdown();
        CHECK(yes.find("**Yes.** 1 row read, all of it is used") != std::string::npos);
        CHECK(yes.find(good) != std::string::npos);
        CHECK(yes.find("## Remarks") == std::string::npos);
        CHECK(yes.find("## Warnings") == std::string::npos);

        const std::string mixed = files.write(
            "mixed.jsonl",
            pair_line("a", std::string(300, 'x')) + std::string(kBadRole) +
                R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", "reasoning": "r"}], "tools": [{"name": "f"}]})"
                "\n");
        const std::string text =
            open({mixed}, {.max_length = 200, .max_bad_fraction = 0.5}).report().to_markdown();
        for (const std::string_view part :
             {"**Not all of it.** 1 of 3 rows (33.33 %)",
              "**unknown_role**: 1 row.",
              ":2:1: messages[0].role is \"alien\"",
              "1 row longer than 200 tokens (data.max_length) cut at the end",
              "1 message with reasoning that is not in the text",
              "1 row with tool definitions"}) {
            CAPTURE(text);
            CAPTURE(part);
            CHECK(text.find(part) != std::string::npos);
        }
    }

    TEST_CASE("dataset: a row that was changed after it was judged is an error of the data") {
        const TemporaryFiles files;
        const std::string line = pair_line("a", "b");
        const std::string path = files.write("a.jsonl", line);
        const Dataset dataset = open({path});
        {
            std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
            file << std::string(line.size() - 1, '!');
        }
        try {
            dataset.encode(0);
            FAIL("encoded");
        } catch (const Error& error) {
            CHECK(error.kind() == ErrorKind::Data);
            CHECK(error.parts().where == path + ":1");
        }
    }

    TEST_CASE("dataset: a tokenizer without the marks of the format is refused") {
        const TemporaryFiles files;
        const std::string path = files.write("a.jsonl", pair_line("a", "b"));
        const auto plain =
            std::make_shared<const Tokenizer>(testing::byte_tokenizer({"<|im_start|>"}));
        CHECK_THROWS_WITH_AS(
            Dataset::open({path}, plain, format_of(), {}), doctest::Contains("<|im_end|>"), Error);
    }

    TEST_CASE("dataset: loss_mask trains a token that shares a byte with a span") {
        Encoding encoding;
        encoding.ids = {1, 2, 3, 4, 5, 6};
        encoding.ranges = {{0, 2}, {2, 4}, {4, 4}, {4, 7}, {7, 9}, {9, 10}};
        const auto mask = [&](const std::vector<ByteRange>& spans) {
            std::string text;
            for (const std::uint8_t bit : loss_mask(encoding, spans)) {
                text += bit != 0 ? '1' : '0';
            }
            return text;
        };
        CHECK(mask({}) == "000000");
        CHECK(mask({{2, 4}}) == "010000");
        CHECK(mask({{3, 5}}) == "010100");
        CHECK(mask({{0, 1}, {8, 10}}) == "100011");
        CHECK(mask({{1, 2}, {2, 3}, {6, 7}}) == "110100");
        CHECK(mask({{5, 5}}) == "000000");
    }
}

}  // namespace dflash::data
