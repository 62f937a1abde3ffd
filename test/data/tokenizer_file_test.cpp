// SPDX-License-Identifier: Apache-2.0
#include "temporary_files.hpp"
#include "tiny_tokenizer.hpp"

#include <dflash/core/error.hpp>
#include <dflash/core/log.hpp>
#include <dflash/data/tokenizer.hpp>

#include <doctest/doctest.h>
#include <string>
#include <vector>

namespace dflash::data {
namespace {

using io::Json;
using testing::TemporaryFiles;
using testing::tiny_json;
using testing::tiny_tokenizer;
using testing::TinySpec;
using testing::with_member;

Json parsed(const char* text) {
    return Json::parse(text, "test");
}

Json replaced(const Json& json, const char* key, const char* value) {
    Json changed = json;
    changed.set(key, parsed(value));
    return changed;
}

// Lines that are logged while it lives.
class LogCatcher {
  public:
    LogCatcher()
        : former_(
              set_log_sink([this](LogLevel, std::string_view line) { lines.emplace_back(line); })) {
    }

    LogCatcher(const LogCatcher&) = delete;
    LogCatcher& operator=(const LogCatcher&) = delete;

    ~LogCatcher() { set_log_sink(former_); }

    std::vector<std::string> lines;

  private:
    LogSink former_;
};

TEST_SUITE("data.tokenizer_file") {
    TEST_CASE("tokenizer file: refuses other kinds and says what it found") {
        const TinySpec spec{.merges = {{"a", "b"}}, .added = {"<a>"}};
        const Json good = tiny_json(spec);
        const auto model = [&](const char* key, const char* value) {
            return with_member(good, "model", key, parsed(value));
        };
        const auto added = [&](const char* value) { return replaced(good, "added_tokens", value); };

        struct Case {
            Json json;
            std::string message;
        };

        const std::vector<Case> cases{
            {parsed("[]"), "found a list, expected the object"},
            {parsed("{}"), "no object \"model\""},
            {model("type", R"("WordPiece")"), "model of type \"WordPiece\", expected BPE"},
            {model("type", R"("Unigram")"), "model of type \"Unigram\", expected BPE"},
            {model("byte_fallback", "true"), "byte_fallback true"},
            {model("dropout", "0.1"), "dropout 0.1"},
            {model("continuing_subword_prefix", R"("##")"), "continuing_subword_prefix \"##\""},
            {model("end_of_word_suffix", R"("</w>")"), "end_of_word_suffix \"</w>\""},
            {model("vocab", "{}"), "without an object \"vocab\""},
            {model("vocab", R"({"a": 0, "b": 1.5})"), "token \"b\" has the id 1.5"},
            {model("vocab", R"({"a": -1})"), "token \"a\" has the id -1"},
            {model("vocab", R"({"a": 4194304})"), "token \"a\" has the id 4194304"},
            {model("vocab", R"({"a": 0, "b": 0})"), "tokens \"a\" and \"b\" have the same id 0"},
            {model("vocab", R"({"a": 0, "a": 1})"), "token \"a\" stands twice"},
            {model("merges", "{}"), "without a list \"merges\""},
            {model("merges", R"(["ab"])"), "merge 0 is"},
            {model("merges", R"(["a b c"])"), "merge 0 is"},
            {model("merges", R"([["a"]])"), "merge 0 is"},
            {model("merges", R"(["a b", "b c"])"), "merge 1 needs the token \"bc\""},
            {model("merges", R"(["a \u20ac"])"), "merge 0 needs the token"},
            {replaced(good, "normalizer", R"({"type":"NFKC"})"), "normalizer of type \"NFKC\""},
            {replaced(
                 good, "normalizer", R"({"type":"Sequence","normalizers":[{"type":"Prepend"}]})"),
             "normalizer of type \"Prepend\""},
            {replaced(good, "decoder", "null"), "decoder is null"},
            {replaced(good, "decoder", R"({"type":"WordPiece"})"), "decoder of type \"WordPiece\""},
            {replaced(good, "pre_tokenizer", "null"), "pre_tokenizer: found null"},
            {replaced(good, "pre_tokenizer", R"({"type":"Metaspace"})"),
             "pre_tokenizer: type \"Metaspace\" is not known"},
            {replaced(good, "pre_tokenizer", R"({"type":"Digits"})"), "no ByteLevel step"},
            {replaced(good, "pre_tokenizer", R"({"type":"ByteLevel","add_prefix_space":true})"),
             "add_prefix_space of ByteLevel is true"},
            {replaced(good, "pre_tokenizer", R"({"type":"ByteLevel"})"),
             "add_prefix_space of ByteLevel is true"},
            {replaced(good,
                      "pre_tokenizer",
                      R"({"type":"Split","pattern":{"Regex":"a"},"behavior":"Removed"})"),
             "behavior of Split is \"Removed\""},
            {replaced(
                 good,
                 "pre_tokenizer",
                 R"({"type":"Split","pattern":{"Regex":"a"},"behavior":"Isolated","invert":true})"),
             "invert of Split is true"},
            {replaced(
                 good, "pre_tokenizer", R"({"type":"Split","pattern":"a","behavior":"Isolated"})"),
             "Split has no pattern"},
            {added("{}"), "added_tokens is an object"},
            {added(R"([{"content":"<b>"}])"), "token \"<b>\" has the id null"},
            {added(R"([{"id":300,"content":"<b>"},{"id":301,"content":"<b>"}])"),
             "\"<b>\" has the id 301, and also the id 300"},
            {added(R"([{"id":300,"content":"<b>"},{"id":300,"content":"<c>"}])"),
             "\"<c>\" has the id 300, which another added token has"},
            {added(R"([{"id":65,"content":"<b>"}])"),
             "\"<b>\" has the id 65, which in the vocabulary is \"A\""},
            {added(R"([{"id":300,"content":"ab"}])"),
             "\"ab\" has the id 300, in the vocabulary 256"},
        };
        CHECK_NOTHROW(Tokenizer::from_json(good, "tiny"));
        for (const Case& c : cases) {
            CAPTURE(c.message);
            try {
                Tokenizer::from_json(c.json, "folder/tokenizer.json");
                FAIL_CHECK("no error");
            } catch (const Error& error) {
                const std::string what = error.what();
                CAPTURE(what);
                CHECK(error.kind() == ErrorKind::Config);
                CHECK(what.find(c.message) != std::string::npos);
                CHECK(what.find("folder/tokenizer.json") != std::string::npos);
                CHECK(what.find("upported are") != std::string::npos);
            }
        }
    }

    TEST_CASE("tokenizer file: a vocabulary without bytes is not a byte-level one") {
        const Json good = tiny_json({});
        Json words = with_member(good, "model", "vocab", parsed(R"({"Hello":0,"world":1})"));
        CHECK_THROWS_WITH_AS(
            Tokenizer::from_json(words, "x"), doctest::Contains("stands for a single byte"), Error);
        // Bytes may be missing, but then nothing else may take their place.
        Json some =
            with_member(tiny_json({.without_bytes = {4}}), "model", "unk_token", Json::string("?"));
        CHECK_THROWS_WITH_AS(
            Tokenizer::from_json(some, "x"), doctest::Contains("1 of 256 bytes"), Error);
        CHECK_NOTHROW(tiny_tokenizer({.without_bytes = {4}}));
    }

    TEST_CASE("tokenizer file: merges as texts and as pairs mean the same") {
        const Json pairs = tiny_json({.merges = {{"a", "b"}, {"ab", "\u0120"}}});
        const Json texts = with_member(pairs, "model", "merges", parsed(R"(["a b", "ab \u0120"])"));
        for (const Json& json : {pairs, texts}) {
            const Tokenizer tokenizer = Tokenizer::from_json(json, "x");
            CHECK(tokenizer.encode("ab abc").ids == std::vector<TokenId>{257, 256, 'c'});
        }
    }

    TEST_CASE("tokenizer file: NFC may stand in a sequence") {
        const Json json = replaced(
            tiny_json({}), "normalizer", R"({"type":"Sequence","normalizers":[{"type":"NFC"}]})");
        CHECK(Tokenizer::from_json(json, "x").encode("e\u0301").ids ==
              std::vector<TokenId>{0xC3, 0xA9});
        CHECK(tiny_tokenizer({}).encode("e\u0301").ids == std::vector<TokenId>{'e', 0xCC, 0x81});
    }

    TEST_CASE("tokenizer file: what is left out is logged") {
        const LogCatcher log;
        const Json json = replaced(tiny_json({}), "truncation", R"({"max_length":4})");
        const Tokenizer tokenizer = Tokenizer::from_json(
            replaced(json, "added_tokens", R"([{"id":300,"content":""}])"), "x");
        CHECK(tokenizer.encode("abcdef").ids.size() == 6);
        CHECK(tokenizer.added_tokens().empty());
        REQUIRE(log.lines.size() == 2);
        CHECK(log.lines[0].find("truncation is set and not used") != std::string::npos);
        CHECK(log.lines[1].find("added token 300 has no text") != std::string::npos);
    }

    TEST_CASE("tokenizer file: takes further added tokens from tokenizer_config.json beside it") {
        const TemporaryFiles files;
        const std::string path =
            files.write("tokenizer.json", tiny_json({.added = {"<a>"}}).dump());
        CHECK(Tokenizer::from_file(path).num_ids() == 257);
        files.write("tokenizer_config.json",
                    R"({"added_tokens_decoder":{"256":{"content":"<a>","special":true},)"
                    R"("270":{"content":"<|audio|>","normalized":false,"special":true},)"
                    R"("256":{"content":"<other>","special":true},)"
                    R"("280":{"content":"<a>","special":true}}})");
        const LogCatcher log;
        const Tokenizer tokenizer = Tokenizer::from_file(path);
        CHECK(tokenizer.encode("<|audio|><a><other>").ids.size() == 2 + 7);
        CHECK(tokenizer.id_of("<|audio|>") == 270);
        CHECK(tokenizer.id_of("<a>") == 256);
        CHECK(tokenizer.num_ids() == 271);
        CHECK(log.lines.size() == 2);  // the two that contradict tokenizer.json
        CHECK_THROWS_AS(Tokenizer::from_file(files.folder() + "/none.json"), Error);
    }
}

}  // namespace
}  // namespace dflash::data
