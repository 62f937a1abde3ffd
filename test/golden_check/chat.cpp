// SPDX-License-Identifier: Apache-2.0
// Mode chat: conversations rendered, tokenised and masked. Text, spans and ids must be exact; the
// mask too, except at the tokens that a case lists as lying partly outside a span.
#include "golden_check.hpp"

#include <dflash/core/error.hpp>
#include <dflash/data/chat_format.hpp>
#include <dflash/data/conversation.hpp>
#include <dflash/data/dataset.hpp>
#include <dflash/data/tokenizer.hpp>

#include <algorithm>
#include <fstream>
#include <map>
#include <memory>
#include <optional>
#include <set>

namespace dflash::golden {

namespace {

// Right and wrong answers for one quantity.
class Tally {
  public:
    void add(bool right, const std::string& where) {
        ++total_;
        if (!right) {
            first_ = wrong_ == 0 ? where : first_;
            ++wrong_;
        }
    }

    void report(const std::string& quantity, Verdict& verdict) const {
        if (total_ > 0) {
            verdict.exact(quantity, wrong_, total_, first_);
        }
    }

  private:
    std::int64_t wrong_ = 0;
    std::int64_t total_ = 0;
    std::string first_;
};

struct Tallies {
    Tally text, spans, prompt, ids, mask, refused;
    std::int64_t straddling = 0;
    std::int64_t without_tokenizer = 0;
};

const io::Json* present(const io::Json& json, std::string_view key) {
    const io::Json* value = json.find(key);
    return value == nullptr || value->is_null() ? nullptr : value;
}

std::vector<std::int64_t> integers_of(const io::Json& json) {
    std::vector<std::int64_t> values;
    for (const io::Json& item : json.items()) {
        values.push_back(item.to_integer().value());
    }
    return values;
}

std::vector<data::ByteRange> spans_of(const io::Json& json) {
    std::vector<data::ByteRange> spans;
    for (const io::Json& item : json.items()) {
        const std::vector<std::int64_t> ends = integers_of(item);
        spans.push_back({.begin = ends.at(0), .end = ends.at(1)});
    }
    return spans;
}

data::RenderOptions options_of(const io::Json& json) {
    data::RenderOptions options;
    if (const io::Json* prompt = present(json, "add_generation_prompt")) {
        options.add_generation_prompt = prompt->as_bool();
    }
    if (const io::Json* thinking = present(json, "enable_thinking")) {
        options.enable_thinking = thinking->as_bool();
    }
    if (const io::Json* preserve = present(json, "preserve_thinking")) {
        options.preserve_thinking = preserve->as_bool();
    }
    if (const io::Json* effort = present(json, "reasoning_effort")) {
        options.reasoning_effort = effort->as_string();
    }
    for (const std::string_view date : {"date_string", "current_date"}) {
        if (const io::Json* value = present(json, date)) {
            options.date = value->as_string();
        }
    }
    return options;
}

// Whether the text before the last span is what a server would send to get that turn; where the
// case does not say it, thinking is off if the span follows an empty think block, and on if it
// follows an open one.
bool prompt_matches(const data::ChatFormat& format,
                    const data::Conversation& conversation,
                    data::RenderOptions options,
                    const data::Rendered& rendered) {
    const auto& messages = conversation.messages;
    const auto last = std::find_if(messages.rbegin(), messages.rend(), [](const auto& message) {
        return message.role == "assistant";
    });
    if (rendered.spans.empty() || last == messages.rend()) {
        return false;
    }
    const std::string before =
        rendered.text.substr(0, static_cast<std::size_t>(rendered.spans.back().begin));
    if (!options.enable_thinking && before.ends_with("<think>\n\n</think>\n\n")) {
        options.enable_thinking = false;
    } else if (!options.enable_thinking && before.ends_with("<think>\n")) {
        options.enable_thinking = true;
    }
    options.add_generation_prompt = true;
    data::Conversation asked = conversation;
    asked.messages.resize(static_cast<std::size_t>(messages.rend() - last) - 1);
    return format.render(asked, options).text == before;
}

void check_tokens(const data::Tokenizer& tokenizer,
                  const data::Rendered& rendered,
                  const io::Json& golden,
                  const std::string& id,
                  Tallies& tallies) {
    const data::Encoding encoding = tokenizer.encode(rendered.text, /*with_ranges=*/true);
    const std::vector<std::int64_t> expected = integers_of(*golden.find("ids"));
    tallies.ids.add(std::equal(encoding.ids.begin(),
                               encoding.ids.end(),
                               expected.begin(),
                               expected.end(),
                               [](TokenId a, std::int64_t b) { return a == b; }),
                    id);

    std::set<std::int64_t> straddle;
    if (const io::Json* list = present(golden, "straddle")) {
        const std::vector<std::int64_t> tokens = integers_of(*list);
        straddle.insert(tokens.begin(), tokens.end());
    }
    tallies.straddling += static_cast<std::int64_t>(straddle.size());
    const std::vector<std::uint8_t> mask = data::loss_mask(encoding, rendered.spans);
    const std::vector<std::int64_t> expected_mask = integers_of(*golden.find("assistant_mask"));
    bool right = mask.size() == expected_mask.size();
    for (std::size_t i = 0; right && i < mask.size(); ++i) {
        right = mask[i] == expected_mask[i] || straddle.count(static_cast<std::int64_t>(i)) > 0;
    }
    tallies.mask.add(right, id);
}

void check_case(const io::Json& golden, const data::Tokenizer* tokenizer, Tallies& tallies) {
    const std::string id = golden.find("id")->as_string();
    const auto format = data::make_chat_format(golden.find("family")->as_string());
    const bool must_refuse = present(golden, "error") != nullptr;
    const data::RenderOptions options = options_of(*golden.find("options"));
    data::Conversation conversation;
    data::Rendered rendered;
    try {
        conversation = data::read_messages(*golden.find("messages"), golden.find("tools"));
        rendered = format->render(conversation, options);
    } catch (const Error& error) {
        if (error.kind() != ErrorKind::Data) {
            throw;
        }
        tallies.refused.add(must_refuse, fmt::format("{}: {}", id, error.what()));
        return;
    }
    if (must_refuse) {
        tallies.refused.add(false, id);
        return;
    }
    tallies.text.add(rendered.text == golden.find("text")->as_string(), id);
    tallies.spans.add(rendered.spans == spans_of(*golden.find("spans")), id);
    if (const io::Json* matches = present(golden, "prompt_matches")) {
        tallies.prompt.add(
            prompt_matches(*format, conversation, options, rendered) == matches->as_bool(), id);
    }
    if (present(golden, "ids") != nullptr) {
        if (tokenizer != nullptr) {
            check_tokens(*tokenizer, rendered, golden, id, tallies);
        } else {
            ++tallies.without_tokenizer;
        }
    }
}

}  // namespace

void check_chat(const std::string& tokenizer_json, const std::string& cases, Verdict& verdict) {
    std::unique_ptr<data::Tokenizer> tokenizer;
    if (tokenizer_json != "-") {
        tokenizer = std::make_unique<data::Tokenizer>(data::Tokenizer::from_file(tokenizer_json));
    }
    std::ifstream in(cases, std::ios::binary);
    if (!in) {
        throw Error(ErrorKind::Config,
                    {.what = "cannot read the cases", .where = cases, .cause = {}, .hint = {}});
    }
    Tallies tallies;
    std::int64_t number = 0;
    for (std::string line; std::getline(in, line);) {
        ++number;
        if (!line.empty()) {
            check_case(io::Json::parse(line, fmt::format("{}:{}", cases, number)),
                       tokenizer.get(),
                       tallies);
        }
    }
    tallies.text.report("text", verdict);
    tallies.spans.report("spans", verdict);
    tallies.prompt.report("prompt_matches", verdict);
    tallies.ids.report("ids", verdict);
    tallies.mask.report("assistant_mask", verdict);
    tallies.refused.report("refused conversations", verdict);
    if (tallies.straddling > 0) {
        verdict.note(fmt::format("{} tokens lie partly outside a span and may have either mask",
                                 tallies.straddling));
    }
    if (tallies.without_tokenizer > 0) {
        verdict.note(fmt::format("{} cases have ids that were not compared: no tokenizer given",
                                 tallies.without_tokenizer));
    }
}

}  // namespace dflash::golden
