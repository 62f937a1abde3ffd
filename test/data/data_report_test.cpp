// SPDX-License-Identifier: Apache-2.0
// What the report says of data with each of the troubles that people have.
#include "byte_tokenizer.hpp"
#include "temporary_files.hpp"

#include <dflash/core/error.hpp>
#include <dflash/data/dataset.hpp>
#include <dflash/data/sample_view.hpp>

#include <algorithm>
#include <doctest/doctest.h>
#include <fmt/format.h>
#include <numeric>

namespace dflash::data {

using testing::TemporaryFiles;

namespace {

std::shared_ptr<const Tokenizer> tokenizer() {
    static const auto shared = std::make_shared<const Tokenizer>(testing::byte_tokenizer());
    return shared;
}

Dataset judge(const std::string& path, DatasetOptions options = {}) {
    options.refuse_bad_data = false;
    return Dataset::open({path}, tokenizer(), make_chat_format("smollm2"), std::move(options));
}

std::string row(std::string_view prompt, std::string_view response) {
    return fmt::format(R"({{"system": "s", "prompt": "{}", "response": "{}"}})", prompt, response) +
           "\n";
}

std::string rows(int count, int answer_bytes = 400) {
    std::string text;
    for (int i = 0; i < count; ++i) {
        text += row(fmt::format("question {}", i),
                    std::string(static_cast<std::size_t>(answer_bytes), 'x'));
    }
    return text;
}

std::vector<std::string> codes_of(const DataReport& report) {
    std::vector<std::string> codes;
    for (const DataWarning& warning : report.warnings()) {
        codes.push_back(warning.code);
        CHECK_FALSE(warning.what.empty());
        CHECK_FALSE(warning.hint.empty());
    }
    return codes;
}

bool has(const std::vector<std::string>& lines, std::string_view part) {
    return std::any_of(lines.begin(), lines.end(), [&](const std::string& line) {
        return line.find(part) != std::string::npos;
    });
}

using Codes = std::vector<std::string>;

}  // namespace

TEST_SUITE("data.data_report") {
    TEST_CASE("report: data without trouble has no warning") {
        const TemporaryFiles files;
        const Dataset dataset = judge(files.write("a.jsonl", rows(40)));
        CHECK(codes_of(dataset.report()) == Codes{});
        CHECK_FALSE(dataset.problem());
        CHECK(dataset.report().to_lines(100).front().find("Yes.") != std::string::npos);
    }

    TEST_CASE("report: rows that end with a question are counted, and the warning says so") {
        const TemporaryFiles files;
        const std::string path = files.write(
            "a.jsonl",
            rows(7) +
                R"({"messages": [{"role": "user", "content": "a"}]})"
                "\n"
                R"({"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}, {"from": "human", "value": "c"}]})"
                "\n"
                R"({"prompt": "only a question"})"
                "\n");
        const Dataset dataset = judge(path);
        CHECK(dataset.report().num_refused("prompt_only") == 3);
        CHECK(dataset.report().refused.at("prompt_only").places ==
              std::vector<std::string>{path + ":8", path + ":9", path + ":10"});
        CHECK(codes_of(dataset.report()) == Codes{"no_response", "too_many_refused"});
        CHECK(dataset.report().warnings().front().what.find("3 of 10 rows (30 %)") !=
              std::string::npos);
        REQUIRE(dataset.problem());
        CHECK(dataset.problem()->kind() == ErrorKind::Data);
        CHECK(dataset.report().to_json().find("without_response")->to_integer() == 3);
    }

    TEST_CASE("report: rows that the target answers in a run are no reason to say no") {
        const TemporaryFiles files;
        std::string prompts;
        for (int i = 0; i < 20; ++i) {
            prompts += fmt::format(R"({{"prompt": "question {}"}})", i) + "\n";
        }
        const std::string path = files.write("a.jsonl", prompts);
        const Dataset alone = judge(path);
        CHECK(has(alone.report().to_lines(100), "No. None of 20 rows can be used."));
        const Dataset answered = judge(path, {.target_answers = true});
        const std::vector<std::string> lines = answered.report().to_lines(100);
        CHECK(
            lines.front().ends_with("Yes, with answers of the target. 20 of 20 rows have none: "
                                    "in a run the target answers them."));
        CHECK(codes_of(answered.report()) == Codes{"no_response"});
        const Dataset broken =
            judge(files.write("b.jsonl", prompts + "{\n{\n"), {.target_answers = true});
        CHECK(has(broken.report().to_lines(100), "Not all of it. 2 of 22 rows"));
        CHECK(codes_of(broken.report()) == Codes{"no_response", "too_many_refused"});
    }

    TEST_CASE("report: trained tokens behind max_length are counted; above 10 % it is a warning") {
        const TemporaryFiles files;
        const std::string path = files.write(
            "a.jsonl",
            rows(8, 100) + row("q", std::string(300, 'x')) + row(std::string(500, 'q'), "answer"));
        for (const std::int64_t max_length : {160, 300, 600}) {
            CAPTURE(max_length);
            const Dataset dataset =
                judge(path, {.max_length = max_length, .max_bad_fraction = 0.5});
            const Dataset whole = judge(path, {.max_length = 10'000});
            const DataReport& report = dataset.report();
            const std::int64_t lost = report.cut_trainable + report.dropped_trainable;
            CHECK(report.trainable_tokens + lost == whole.report().trainable_tokens);
            CHECK(report.lost_fraction() ==
                  doctest::Approx(static_cast<double>(lost) /
                                  static_cast<double>(whole.report().trainable_tokens)));
            CHECK((codes_of(report) == Codes{"answers_cut"}) == (report.lost_fraction() > 0.1));
            CHECK((max_length == 160) == (report.lost_fraction() > 0.1));
            CHECK(report.num_refused("cut_before_answer") == (max_length < 500 ? 1 : 0));
            CHECK(report.cut.rows == (max_length == 160 ? 1 : max_length == 300 ? 1 : 0));
        }
    }

    TEST_CASE("report: rows that an earlier row equals are counted, whatever their shape") {
        const TemporaryFiles files;
        const std::string path = files.write(
            "a.jsonl",
            rows(20) + row("question 3", std::string(400, 'x')) +
                R"({"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "question 5"}, {"role": "assistant", "content": ")" +
                std::string(400, 'x') + R"("}], "id": 8})" + "\n" +
                // Another mask makes it another row.
                R"({"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "question 6"}, {"role": "assistant", "content": ")" +
                std::string(400, 'x') +
                R"("}, {"role": "user", "content": "b"}, {"role": "assistant", "content": "c"}]})" +
                "\n");
        const Dataset dataset = judge(path);
        const RowGroup& duplicates = dataset.report().duplicates;
        CHECK(duplicates.rows == 2);
        CHECK(duplicates.places == std::vector<std::string>{path + ":21 = " + path + ":4",
                                                            path + ":22 = " + path + ":6"});
        CHECK(codes_of(dataset.report()) == Codes{"many_duplicates"});
    }

    TEST_CASE("report: rows without two trained tokens side by side are named, and train nothing") {
        const TemporaryFiles files;
        // Pain: an answer of one token hung or crashed a trainer. Here the end of the turn follows
        // it, so that it has one place for a block; with the answer masked nothing is left.
        const std::string path = files.write(
            "a.jsonl",
            rows(10) +
                R"({"conversations":[{"role":"user","content":"hi"},{"role":"assistant","content":"k"}]})"
                "\n"
                R"({"input_ids":[1,2,3,4],"loss_mask":[0,1,0,1]})"
                "\n");
        const Dataset dataset = judge(path);
        CHECK(dataset.usable().size() == 12);
        CHECK(dataset.report().without_anchor.rows == 1);
        CHECK(dataset.report().without_anchor.places == std::vector<std::string>{path + ":12"});
        CHECK(codes_of(dataset.report()) == Codes{"without_anchor"});
    }

    TEST_CASE("report: shapes, fields that nobody reads, and lengths add up") {
        const TemporaryFiles files;
        const std::string path = files.write(
            "a.jsonl",
            rows(3, 40) +
                R"({"messages": [{"role": "user", "content": "a", "mood": 1}, {"role": "assistant", "content": "b"}], "id": 1})"
                "\n"
                R"({"messages": [{"role": "user", "content": "a"}], "id": 2})"
                "\n"
                R"({"input_ids": [1, 2, 3], "labels": [-100, 2, 3]})"
                "\n"
                R"({"input_ids": [1, 2, 999], "labels": [-100, 2, 999]})"
                "\n{}\n");
        const Dataset dataset = judge(path);
        const DataReport& report = dataset.report();
        REQUIRE(report.shapes.size() == 3);
        CHECK(report.shapes.at("prompt + response").usable == 3);
        CHECK(report.shapes.at("messages").rows == 2);
        CHECK(report.shapes.at("messages").usable == 1);
        CHECK(report.shapes.at("input_ids + labels").rows == 2);
        CHECK(report.shapes.at("input_ids + labels").usable == 1);
        CHECK(report.refused.at("foreign_token").message.find("input_ids holds 999") !=
              std::string::npos);
        CHECK(report.ignored ==
              std::map<std::string, std::int64_t>{{"id", 2}, {"messages[].mood", 1}});
        CHECK(std::accumulate(report.lengths.begin(), report.lengths.end(), std::int64_t{0}) ==
              report.usable);
        CHECK(report.lengths.front() == 1);  // the row of three tokens
        CHECK(report.length_p50 <= report.length_p90);
        CHECK(report.longest ==
              *std::max_element(dataset.lengths().begin(), dataset.lengths().end()));
        CHECK(report.files.at(0).rows == 8);
        CHECK(report.files.at(0).usable == 5);
        CHECK(report.bytes == static_cast<std::int64_t>(std::filesystem::file_size(path)));
    }

    TEST_CASE("report: fields named by ids do not fill it") {
        const TemporaryFiles files;
        std::string text;
        for (int i = 0; i < 500; ++i) {
            text += fmt::format(R"({{"prompt": "a", "response": "bcdef", "id{}": 1}})", i) + "\n";
        }
        CHECK(judge(files.write("a.jsonl", text)).report().ignored.size() <= 200);
    }

    TEST_CASE("report: blocks that reach few of the trained tokens are a warning") {
        const TemporaryFiles files;
        const std::string path = files.write("a.jsonl", rows(5, 2000));
        const Dataset few = judge(path, {.max_anchors = 10, .block_size = 4});
        CHECK(codes_of(few.report()) == Codes{"low_coverage"});
        // 10 blocks of 3 predicted tokens among 2,001: they hardly ever overlap.
        CHECK(few.report().covered == doctest::Approx(5 * 30).epsilon(0.02));
        CHECK(few.report().anchors == 50);
        const Dataset many = judge(path, {.max_anchors = 512, .block_size = 16});
        CHECK(codes_of(many.report()) == Codes{});
    }

    TEST_CASE("report: text, Markdown and JSON tell the same, and hold no foreign control codes") {
        const TemporaryFiles files;
        const std::string path = files.write(
            "a.jsonl",
            rows(12) +
                R"({"messages": [{"role": "ali\u001b[31men", "content": "x"}], "b`ad\u001b": 1})"
                "\n" +
                R"({"prompt": "a", "response": "b", "ba`d\u001b": 1})" + "\n");
        const Dataset dataset = judge(path, {.max_bad_fraction = 0.5});
        const DataReport& report = dataset.report();
        const std::vector<std::string> lines = report.to_lines(80);
        CHECK(has(lines, "1 of 14 rows (7.14 %) cannot be used"));
        CHECK(has(lines, "refused   unknown_role: 1 row"));
        CHECK(has(lines, path + ":13:1: messages[0].role"));
        CHECK(has(lines, "13 of 14 rows usable"));
        CHECK(has(lines, "####"));
        for (const std::string& line : lines) {
            CAPTURE(line);
            CHECK(line.find('\x1b') == std::string::npos);
        }
        const std::string markdown = report.to_markdown();
        CHECK(markdown.find("**Not all of it.** 1 of 14 rows") != std::string::npos);
        CHECK(markdown.find("| prompt + response | 13 | 13 |") != std::string::npos);
        const io::Json json = io::Json::parse(report.to_json().dump_pretty(), "report");
        CHECK(json.find("rows")->to_integer() == 14);
        CHECK(json.find("refused")->find("unknown_role")->find("rows")->to_integer() == 1);
        CHECK(json.find("refused")->find("unknown_role")->find("examples")->items().size() == 1);
        CHECK(json.find("shapes")->find("prompt + response")->find("usable")->to_integer() == 13);
        CHECK(json.find("trained_tokens")->to_integer() == report.trainable_tokens);
        CHECK(json.find("warnings")->is_array());
    }

    TEST_CASE("report: samples show the text with what is trained") {
        const TemporaryFiles files;
        const std::string path = files.write(
            "a.jsonl", row("a\\u001b[2Jb", "one\\ntwo") + row("q", std::string(3000, 'x')));
        const Dataset dataset = judge(path);
        const SampleView view = view_sample(dataset, *tokenizer(), 0);
        CHECK(view.place == path + ":1");
        REQUIRE(view.runs.size() == 3);
        CHECK_FALSE(view.runs[0].trained);
        CHECK(view.runs[1].text == "one\ntwo<|im_end|>");
        CHECK(view.runs[2].text == "\n");
        CHECK(view.trained_tokens == view.runs[1].tokens);

        const std::vector<std::string> plain = to_lines(view, /*colours=*/false);
        CHECK(has(plain, ">>>one"));
        CHECK(has(plain, "two<|im_end|><<<"));
        CHECK(has(plain, "a\\x1b[2Jb"));
        const std::vector<std::string> coloured = to_lines(view, /*colours=*/true);
        CHECK(has(coloured, "\x1b[32mone\x1b[0m"));
        CHECK(has(coloured, "\x1b[32mtwo<|im_end|>\x1b[0m"));
        CHECK_FALSE(has(coloured, "\x1b[2J"));

        const std::vector<std::string> cut =
            to_lines(view_sample(dataset, *tokenizer(), 1), false, 100);
        CHECK(has(cut, "[... 2,910 bytes ...]"));
        CHECK(to_json(view).find("runs")->items()[1].find("trained")->as_bool());
    }
}

}  // namespace dflash::data
