// SPDX-License-Identifier: Apache-2.0
#include "line_encoder.hpp"

#include "byte_tokenizer.hpp"

#include <doctest/doctest.h>
#include <memory>
#include <string>
#include <vector>

namespace dflash::data {

TEST_SUITE("data.line_encoder") {
    TEST_CASE(
        "line encoder: a row ends where its last answer was cut, and nothing behind is trained") {
        struct Case {
            std::string format;
            std::string answer;  // of the assistant: what its message holds
            std::string more;    // of the row
            std::string trained;
        };

        const std::string cut = R"(, "finish_reason": "length")";
        const std::string thought = R"("reasoning_content": "well, th", "content": "")";
        const std::string both = R"("reasoning_content": "well", "content": "Hel")";
        const std::vector<Case> cases = {
            {"smollm2", R"("content": "Hel")", cut, "Hey<|im_end|>Hel"},
            {"smollm2", R"("content": "He<|x ")", cut, "Hey<|im_end|>He<|x "},
            {"smollm2", R"("content": "Hel")", "", "Hey<|im_end|>Hel<|im_end|>"},
            {"smollm2",
             R"("content": "Hel")",
             R"(, "finish_reason": "stop")",
             "Hey<|im_end|>Hel<|im_end|>"},
            {"smollm2", R"("weight": 0, "content": "Hel")", cut, "Hey<|im_end|>"},
            {"smollm2", thought, cut, "Hey<|im_end|>"},  // which has no form for it
            {"qwen3", thought, cut, "Hey<|im_end|><think>\nwell, th"},
            {"qwen3", both, cut, "Hey<|im_end|><think>\nwell\n</think>\n\nHel"},
            {"qwen3", both, "", "Hey<|im_end|><think>\nwell\n</think>\n\nHel<|im_end|>"},
            {"qwen3.5", thought, cut, "Hey<|im_end|>well, th"},
            {"qwen3.5", R"("content": "Hel ")", cut, "Hey<|im_end|>Hel"},
        };
        const auto tokenizer = std::make_shared<const Tokenizer>(testing::byte_tokenizer());
        for (const Case& c : cases) {
            CAPTURE(c.format);
            CAPTURE(c.answer);
            CAPTURE(c.more);
            const LineEncoder encoder(tokenizer, make_chat_format(c.format), {});
            const EncodedLine line =
                encoder.encode(R"({"messages": [{"role": "user", "content": "Hi"}, )"
                               R"({"role": "assistant", "content": "Hey"}, )"
                               R"({"role": "user", "content": "And?"}, {"role": "assistant", )" +
                                   c.answer + "}]" + c.more + "}",
                               /*ends_file=*/false);
            REQUIRE(!line.fault);
            std::vector<TokenId> trained;
            for (std::size_t i = 0; i < line.tokens.size(); ++i) {
                if (line.trainable[i] != 0) {
                    trained.push_back(line.tokens[i]);
                }
            }
            CHECK(tokenizer->decode(trained) == c.trained);
            CHECK(tokenizer->decode(line.tokens).ends_with("<|im_end|>\n") == (c.more != cut));
            CHECK(line.ignored.empty());
        }
    }
}

}  // namespace dflash::data
