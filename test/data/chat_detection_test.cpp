// SPDX-License-Identifier: Apache-2.0
#include "byte_tokenizer.hpp"
#include "temporary_files.hpp"

#include <dflash/core/error.hpp>
#include <dflash/data/chat_format.hpp>

#include <doctest/doctest.h>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

namespace dflash::data {

namespace {

std::string published(const std::string& name) {
    std::ifstream in("test/golden/templates/" + name + ".jinja", std::ios::binary);
    REQUIRE_MESSAGE(in.good(), name);
    return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

std::string quoted(const std::string& text) {
    return io::Json::string(text).dump();
}

std::string replaced(std::string text, const std::string& part, const std::string& with) {
    const std::size_t at = text.find(part);
    REQUIRE(at != std::string::npos);
    return text.replace(at, part.size(), with);
}

DetectedFormat detect(const std::string& file, const std::string& text) {
    const testing::TemporaryFiles folder;
    folder.write(file, text);
    return detect_chat_format(folder.folder(), testing::byte_tokenizer());
}

void check_refused(const std::string& file,
                   const std::string& text,
                   const std::vector<std::string>& mentions) {
    const testing::TemporaryFiles folder;
    const std::string path = folder.write(file, text);
    try {
        detect_chat_format(folder.folder(), testing::byte_tokenizer());
        FAIL("accepted");
    } catch (const Error& error) {
        CHECK(error.kind() == ErrorKind::Config);
        CHECK(error.parts().where == path);
        CHECK(error.parts().hint.find("data.chat_format") != std::string::npos);
        for (const std::string& mention : mentions) {
            CAPTURE(error.what());
            CHECK_MESSAGE(std::string(error.what()).find(mention) != std::string::npos, mention);
        }
    }
}

}  // namespace

TEST_SUITE("data.chat_detection") {
    TEST_CASE("chat_detection: each published template tells its family, in either file") {
        struct Case {
            std::string name;
            std::string_view family;
        };

        for (const Case& c : std::vector<Case>{{"gptoss", "gpt-oss"},
                                               {"llama3_1", "llama3.1"},
                                               {"qwen2_5", "qwen2.5"},
                                               {"qwen3", "qwen3"},
                                               {"qwen3_april_2025", "qwen3"},
                                               {"qwen3_instruct_2507", "qwen3-2507"},
                                               {"qwen3_5_think", "qwen3.5"},
                                               {"qwen3_5_nothink", "qwen3.5-small"},
                                               {"qwen3_6", "qwen3.6"},
                                               {"qwen3_8", "qwen3.8"},
                                               {"smollm2", "smollm2"}}) {
            CAPTURE(c.name);
            const std::string text = published(c.name);
            const std::string config = R"({"chat_template": )" + quoted(text) + "}";
            const std::string list = R"({"chat_template": [{"name": "rag", "template": "x"}, )"
                                     R"({"name": "default", "template": )" +
                                     quoted(text) + "}]}";
            CHECK(detect("chat_template.jinja", text).format->name() == c.family);
            CHECK(detect("tokenizer_config.json", config).format->name() == c.family);
            CHECK(detect("tokenizer_config.json", list).format->name() == c.family);
            // Editors add or drop the line feed at the end, which Jinja drops.
            const std::string other_end =
                text.ends_with("\n") ? text.substr(0, text.size() - 1) : text + "\n";
            CHECK(detect("chat_template.jinja", other_end).format->name() == c.family);
        }
    }

    TEST_CASE("chat_detection: the template file wins over the entry, and is named") {
        const testing::TemporaryFiles folder;
        folder.write("chat_template.jinja", published("qwen3"));
        folder.write("tokenizer_config.json",
                     R"({"chat_template": )" + quoted(published("qwen2_5")) + "}");
        const DetectedFormat found = detect_chat_format(folder.folder(), testing::byte_tokenizer());
        CHECK(found.format->name() == "qwen3");
        CHECK(found.origin == "the template of Qwen3 in chat_template.jinja");
    }

    TEST_CASE("chat_detection: a template with one change stops the run, naming it and its like") {
        // Changes that are seen in copies of Qwen3's template.
        const std::string qwen3 = published("qwen3");
        for (const std::string& text :
             {replaced(qwen3, "loop.index0 > ns.last_query_index", "false"),
              replaced(
                  qwen3, "{%- if enable_thinking is defined and enable_thinking is false %}", ""),
              replaced(qwen3, "# Tools", "# Functions"),
              qwen3 + "\n\n"}) {
            check_refused("chat_template.jinja", text, {"fingerprint", "{%- if tools %}", "qwen3"});
        }
        check_refused("tokenizer_config.json",
                      R"({"chat_template": )" + quoted(qwen3 + " ") + "}",
                      {"fingerprint", "marks of qwen3"});
        check_refused("chat_template.jinja", "{{ messages }}", {"fingerprint", "generic"});
    }

    TEST_CASE("chat_detection: a known template of another family is named") {
        check_refused("chat_template.jinja",
                      published("llama3_2"),
                      {"that of Llama 3.2 (fingerprint e980fb39e0834855)"});
    }

    TEST_CASE("chat_detection: an entry of another kind is refused") {
        check_refused(
            "tokenizer_config.json", R"({"chat_template": [{"name": "rag"}]})", {"default"});
        check_refused("tokenizer_config.json", R"({"chat_template": 7})", {"a number"});
    }

    TEST_CASE("chat_detection: without a template the added tokens tell the family, or nothing") {
        const testing::TemporaryFiles folder;
        folder.write("tokenizer_config.json", R"({"chat_template": null})");
        const auto detected = [&](const std::vector<std::string>& tokens) {
            return detect_chat_format(folder.folder(), testing::byte_tokenizer(tokens));
        };
        const std::vector<std::string> chatml = {"<|im_start|>", "<|im_end|>"};
        const auto with = [&](std::vector<std::string> more) {
            more.insert(more.end(), chatml.begin(), chatml.end());
            return more;
        };
        CHECK(detected(chatml).format->name() == "smollm2");
        CHECK(detected(with({"<|vision_start|>"})).format->name() == "qwen2.5");
        CHECK(detected(with({"<|vision_start|>", "<think>"})).format->name() == "qwen3");
        CHECK(detected({"<|start|>", "<|channel|>", "<|message|>", "<|return|>"}).format->name() ==
              "gpt-oss");
        CHECK(detected(chatml).origin.find("no chat template") != std::string::npos);
        for (const std::vector<std::string>& tokens : {std::vector<std::string>{"<|im_start|>"},
                                                       with({"<think>", "<|audio_start|>"}),
                                                       {"<|start_header_id|>", "<|eot_id|>"}}) {
            CHECK_THROWS_WITH_AS(detected(tokens), doctest::Contains("data.chat_format"), Error);
        }
    }

    TEST_CASE("chat_detection: data.chat_format decides, whatever the template is") {
        const testing::TemporaryFiles folder;
        folder.write("chat_template.jinja", "{{ messages }}");
        const DetectedFormat found =
            choose_chat_format("qwen3", {}, folder.folder(), testing::byte_tokenizer());
        CHECK(found.format->name() == "qwen3");
        CHECK(found.origin == "data.chat_format");
        CHECK_THROWS_AS(
            choose_chat_format(std::nullopt, {}, folder.folder(), testing::byte_tokenizer()),
            Error);
    }
}

}  // namespace dflash::data
