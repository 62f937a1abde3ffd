// SPDX-License-Identifier: Apache-2.0
#include <dflash/core/check.hpp>
#include <dflash/core/error.hpp>
#include <dflash/core/random.hpp>
#include <dflash/core/text.hpp>
#include <dflash/data/data_list.hpp>
#include <dflash/data/row.hpp>
#include <dflash/data/row_file.hpp>
#include <dflash/train/eval_prompts.hpp>

#include <algorithm>
#include <fmt/format.h>
#include <variant>

namespace dflash::train {
namespace {

/// Why a row is left out: a reason to count by, and a sentence.
struct Unusable {
    std::string reason;
    std::string sentence;
};

bool begins_with(const std::vector<TokenId>& tokens, const std::vector<TokenId>& prefix) {
    return tokens.size() >= prefix.size() &&
           std::equal(prefix.begin(), prefix.end(), tokens.begin());
}

class PromptReader {
  public:
    PromptReader(const RunText& text, const EvalPromptOptions& options)
        : text_(text), options_(options) {}

    /// Sets tokens and answer. Throws Unusable or Error{Data}.
    void read(const data::Row& row, EvalPrompt& prompt) {
        rendering_differs_ = false;
        std::visit([&](const auto& content) { read_content(content, prompt); }, row.content);
        if (prompt.tokens.empty()) {
            throw Unusable{"empty prompt", "nothing stands before the answer"};
        }
        if (std::ssize(prompt.tokens) > options_.longest) {
            throw Unusable{
                "prompt longer than the context",
                fmt::format(
                    "{} tokens, expected at most {}: the context less eval.acceptance_tokens",
                    prompt.tokens.size(),
                    options_.longest)};
        }
    }

    bool rendering_differs() const { return rendering_differs_; }

  private:
    std::vector<TokenId> encode(const std::string& text) const {
        return text_.tokenizer->encode(text).ids;
    }

    void read_content(const data::Conversation& row, EvalPrompt& prompt) {
        data::RenderOptions render = options_.render;
        data::Conversation question = row;
        if (row.is_prompt()) {
            if (!prompt.thinking) {
                prompt.thinking = options_.thinking;
            }
        } else {
            // As the server did that the answer came from.
            const std::optional<bool> served = text_.format->served_thinking(row);
            prompt.thinking = prompt.thinking ? prompt.thinking : served;
            question.messages.pop_back();
        }
        if (question.messages.empty()) {
            throw Unusable{"empty prompt", "an answer without a question"};
        }
        render.enable_thinking = prompt.thinking;
        render.add_generation_prompt = true;
        prompt.tokens = encode(text_.format->render(question, render).text);
        if (row.is_prompt()) {
            return;
        }
        render.add_generation_prompt = false;
        const data::Rendered whole = text_.format->render(row, render);
        const data::Encoding encoding = text_.tokenizer->encode(whole.text, /*with_ranges=*/true);
        take_answer(encoding.ids, data::loss_mask(encoding, whole.spans), prompt);
        rendering_differs_ = prompt.answer.empty();
    }

    void read_content(const data::FinishedTokens& row, EvalPrompt& prompt) {
        if (!row.loss_mask) {
            throw Unusable{"tokens without a mask", "no mask says where the answer begins"};
        }
        split_at_mask(row.ids, *row.loss_mask, prompt);
    }

    void read_content(const data::FinishedText& row, EvalPrompt& prompt) {
        const data::Encoding encoding = text_.tokenizer->encode(row.text, /*with_ranges=*/true);
        const std::vector<data::ByteRange> spans = data::spans_of_text(*text_.format, row.text);
        split_at_mask(encoding.ids, data::loss_mask(encoding, spans), prompt);
    }

    static void split_at_mask(const std::vector<TokenId>& ids,
                              const std::vector<std::uint8_t>& mask,
                              EvalPrompt& prompt) {
        if (!split_at_answer(ids, mask, prompt)) {
            throw Unusable{"no answer marked", "the mask marks no token"};
        }
    }

    /// What follows the prompt in the text that training sees, up to the last trained token.
    static void take_answer(const std::vector<TokenId>& ids,
                            const std::vector<std::uint8_t>& mask,
                            EvalPrompt& prompt) {
        const auto last = std::find(mask.rbegin(), mask.rend(), 1);
        const auto end = mask.rend() - last;
        if (begins_with(ids, prompt.tokens) && end > std::ssize(prompt.tokens)) {
            prompt.answer.assign(ids.begin() + std::ssize(prompt.tokens), ids.begin() + end);
        }
    }

    const RunText& text_;
    const EvalPromptOptions& options_;
    bool rendering_differs_ = false;
};

/// What a row says of itself beside its content.
void read_labels(const io::Json& json, EvalPrompt& prompt) {
    for (const char* name : {"category", "task", "source", "dataset", "subset"}) {
        const io::Json* field = json.find(name);
        if (field != nullptr && field->is_string()) {
            prompt.category = field->as_string();
            break;
        }
    }
    const io::Json* thinking = json.find("thinking");
    if (thinking == nullptr) {
        return;
    }
    if (thinking->is_bool()) {
        prompt.thinking = thinking->as_bool();
    } else if (thinking->is_string() &&
               (thinking->as_string() == "on" || thinking->as_string() == "off")) {
        prompt.thinking = thinking->as_string() == "on";
    }
}

void count(SkippedRows& group, const std::string& place, const std::string& sentence) {
    if (group.count++ == 0) {
        group.example = fmt::format("{}: {}", place, sentence);
    }
}

/// Rows in the order in which they are tried.
std::vector<std::int64_t> order_of_rows(std::int64_t num_rows, const EvalPromptOptions& options) {
    // Held-out samples are drawn with id 0.
    RandomStream stream(options.seed, Purpose::Holdout, /*epoch=*/0, /*id=*/1);
    return stream.permutation(num_rows);
}

[[noreturn]] void throw_no_prompts(const std::string& list, const EvalPrompts& result) {
    std::string reasons;
    for (const auto& [reason, group] : result.left_out) {
        reasons += fmt::format("{}{} ({}: {})",
                               reasons.empty() ? "" : "; ",
                               format_count(group.count),
                               reason,
                               group.example);
    }
    throw Error(ErrorKind::Data,
                {.what = fmt::format("none of the {} rows is a prompt that can be answered",
                                     format_count(result.num_rows)),
                 .where = list,
                 .cause = reasons,
                 .hint = "dflash data --data FILE says how rows are read"});
}

}  // namespace

std::int64_t longest_prompt(std::int64_t answer_tokens,
                            std::int64_t target_context,
                            std::int64_t draft_context) {
    const std::int64_t context = std::min(target_context, draft_context);
    if (answer_tokens >= context) {
        throw Error(
            ErrorKind::Config,
            {.what = fmt::format("eval.acceptance_tokens: got {}, expected less than the context "
                                 "of {} tokens (target {}, drafter {})",
                                 answer_tokens,
                                 context,
                                 target_context,
                                 draft_context),
             .where = {},
             .cause = {},
             .hint = "Answers need room for their prompts"});
    }
    return context - answer_tokens;
}

bool split_at_answer(const std::vector<TokenId>& tokens,
                     const std::vector<std::uint8_t>& mask,
                     EvalPrompt& prompt) {
    const auto last = std::find(mask.rbegin(), mask.rend(), 1);
    if (last == mask.rend()) {
        prompt.tokens = tokens;
        prompt.answer.clear();
        return false;
    }
    const auto begin = mask.rend() - std::find(last, mask.rend(), 0);
    const auto end = mask.rend() - last;
    prompt.tokens.assign(tokens.begin(), tokens.begin() + begin);
    prompt.answer.assign(tokens.begin() + begin, tokens.begin() + end);
    return true;
}

EvalPrompts read_eval_prompts(const std::string& list,
                              const RunText& text,
                              const data::RowFileOptions& files,
                              const EvalPromptOptions& options) {
    const std::vector<data::DataFile> paths = data::parse_data_list(list);
    if (paths.empty()) {
        throw Error(ErrorKind::Config,
                    {.what = "no prompts",
                     .where = {},
                     .cause = {},
                     .hint = "Name a file of rows with --data prompts.jsonl"});
    }
    EvalPrompts result;
    std::vector<data::RowFile> opened;
    std::vector<std::int64_t> first_rows;
    for (const data::DataFile& path : paths) {
        opened.emplace_back(path.path, files);
        first_rows.push_back(result.num_rows);
        result.num_rows += opened.back().size();
    }
    PromptReader reader(text, options);
    for (const std::int64_t row : order_of_rows(result.num_rows, options)) {
        if (std::ssize(result.prompts) == options.count) {
            break;
        }
        ++result.num_read;
        const auto file_index = static_cast<std::size_t>(
            std::upper_bound(first_rows.begin(), first_rows.end(), row) - first_rows.begin() - 1);
        const data::RowFile& file = opened[file_index];
        const std::int64_t row_of_file = row - first_rows[file_index];
        EvalPrompt prompt;
        prompt.row = row;
        prompt.place = fmt::format("{}:{}", file.path(), file.place(row_of_file).line);
        const data::RowResult read =
            data::read_row(file.text(row_of_file), file.ends_file(row_of_file));
        if (read.fault) {
            count(result.left_out[read.fault->kind], prompt.place, read.fault->message);
            continue;
        }
        try {
            read_labels(io::Json::parse(file.text(row_of_file), prompt.place), prompt);
            reader.read(*read.row, prompt);
        } catch (const Unusable& unusable) {
            count(result.left_out[unusable.reason], prompt.place, unusable.sentence);
            continue;
        } catch (const Error& error) {
            if (error.kind() != ErrorKind::Data) {
                throw;
            }
            count(result.left_out["refused by the chat format"], prompt.place, error.parts().what);
            continue;
        }
        if (reader.rendering_differs()) {
            count(result.other_rendering,
                  prompt.place,
                  "what training would see does not begin with what a server would send");
        }
        result.prompts.push_back(std::move(prompt));
    }
    if (result.prompts.empty()) {
        throw_no_prompts(list, result);
    }
    std::sort(result.prompts.begin(), result.prompts.end(), [](const auto& a, const auto& b) {
        return a.row < b.row;
    });
    return result;
}

}  // namespace dflash::train
