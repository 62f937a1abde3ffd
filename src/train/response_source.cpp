// SPDX-License-Identifier: Apache-2.0
#include <dflash/core/check.hpp>
#include <dflash/core/error.hpp>
#include <dflash/core/first_error.hpp>
#include <dflash/core/random.hpp>
#include <dflash/data/answer.hpp>
#include <dflash/data/repetition.hpp>
#include <dflash/train/response_source.hpp>

#include <algorithm>
#include <atomic>
#include <fmt/format.h>
#include <thread>
#include <utility>

namespace dflash::train {
namespace {

constexpr std::int64_t kRowsAtATime = 64;
// Turns of a row have random numbers of their own.
constexpr int kTurnBits = 16;

bool has_thinking_switch(const data::ChatFormat& format) {
    data::Conversation question;
    question.messages.emplace_back();
    question.messages.back().role = "user";
    question.messages.back().content = "?";
    data::RenderOptions options;
    options.add_generation_prompt = true;
    options.enable_thinking = true;
    const std::string with = format.render(question, options).text;
    options.enable_thinking = false;
    return with != format.render(question, options).text;
}

std::string on_one_line(std::string_view row) {
    return row.find('\n') == std::string_view::npos ? std::string(row)
                                                    : io::Json::parse(row, "").dump();
}

}  // namespace

std::int64_t ResponseFigures::num_left_out() const {
    std::int64_t sum = 0;
    for (const auto& [reason, rows_of_it] : left_out) {
        sum += rows_of_it.rows;
    }
    return sum;
}

/// A task whose turns are being answered.
struct ResponseSource::Asked {
    data::PromptRow row;
    std::string prompt{};  ///< rendered, up to the answer
    std::vector<TokenId> tokens{};
    std::int64_t answer_tokens = 0;
    double most_repeated = 0;
    bool cut = false;
    bool inexact = false;
};

ResponseSource::ResponseSource(const std::vector<data::DataFile>& files,
                               const RunText& text,
                               ResponseOptions options,
                               const data::RowFileOptions& file_options)
    : text_(text), options_(std::move(options)) {
    can_choose_thinking_ = has_thinking_switch(*text_.format);
    if (!can_choose_thinking_ && options_.thinking == ThinkingMode::On) {
        throw Error(ErrorKind::Config,
                    {.what = fmt::format("generate.thinking: got \"on\", but the chat format {} "
                                         "has no such switch",
                                         text_.format->name()),
                     .where = {},
                     .cause = {},
                     .hint = "Leave generate.thinking out"});
    }
    for (const data::DataFile& file : files) {
        if (file.weight != 1) {
            throw Error(ErrorKind::Config,
                        {.what = fmt::format("{} has the weight {}, expected none: each row is "
                                             "answered generate.samples times",
                                             file.path,
                                             file.weight),
                         .where = {},
                         .cause = {},
                         .hint = "Name the file without a weight"});
        }
        first_rows_.push_back(figures_.rows);
        files_.emplace_back(file.path, file_options);
        figures_.rows += files_.back().size();
        figures_.bytes += static_cast<Bytes>(files_.back().bytes().size());
    }
    first_rows_.push_back(figures_.rows);
    judge_all();
}

ResponseSource::~ResponseSource() = default;

const data::RowFile& ResponseSource::file_of(std::int64_t row, std::int64_t& place) const {
    const auto after = std::upper_bound(first_rows_.begin(), first_rows_.end(), row);
    const auto file = static_cast<std::size_t>(after - first_rows_.begin() - 1);
    place = row - first_rows_[file];
    return files_[file];
}

data::PromptRow::Result ResponseSource::read(std::int64_t row) const {
    std::int64_t at = 0;
    const data::RowFile& file = file_of(row, at);
    return data::PromptRow::read(file.text(at), file.ends_file(at), options_.choice);
}

std::string ResponseSource::place(std::int64_t row) const {
    std::int64_t at = 0;
    const data::RowFile& file = file_of(row, at);
    return fmt::format("{}:{}", file.path(), file.place(at).line);
}

std::optional<bool> ResponseSource::thinking_of(std::int64_t task) const {
    if (!can_choose_thinking_) {
        return std::nullopt;
    }
    if (options_.thinking != ThinkingMode::Mixed) {
        return options_.thinking == ThinkingMode::On;
    }
    RandomStream coin(options_.seed, Purpose::Thinking, 0, static_cast<std::uint64_t>(task));
    return coin.below(2) == 1;
}

data::RenderOptions ResponseSource::render_options(std::int64_t task) const {
    data::RenderOptions render = options_.render;
    render.add_generation_prompt = true;
    if (const std::optional<bool> thinking = thinking_of(task)) {
        render.enable_thinking = thinking;
    }
    return render;
}

// The prompt of the turn; false if it is too long.
bool ResponseSource::prepare(Asked& asked, std::int64_t task) const {
    asked.prompt = text_.format->render(asked.row.question(), render_options(task)).text;
    asked.tokens = text_.tokenizer->encode(asked.prompt).ids;
    const auto length = static_cast<std::int64_t>(asked.tokens.size());
    return length >= 1 && length <= options_.max_prompt_tokens && length < options_.context;
}

void ResponseSource::judge(std::int64_t row, ResponseFigures& figures) {
    Kind& kind = kinds_[static_cast<std::size_t>(row)];
    const auto leave_out = [&](const std::string& reason, const std::string& why) {
        kind = Kind::LeftOut;
        LeftOutRows& rows = figures.left_out[reason];
        if (rows.rows++ == 0) {
            rows.first = fmt::format("{}: {}", place(row), why);
        }
    };
    data::PromptRow::Result result = read(row);
    if (result.fault) {
        leave_out(result.fault->kind, result.fault->message);
        return;
    }
    if (!result.prompt) {
        kind = Kind::Kept;
        ++figures.kept;
        return;
    }
    const auto turns = static_cast<std::int64_t>(result.prompt->question().later_turns.size()) + 1;
    Asked asked{.row = std::move(*result.prompt)};
    try {
        const bool fits = prepare(asked, row * options_.samples);
        const auto length = static_cast<std::int64_t>(asked.tokens.size());
        if (!fits) {
            leave_out("prompt_too_long",
                      fmt::format("the prompt has {} tokens, generate.max_prompt_tokens is {} and "
                                  "the target's context {}",
                                  length,
                                  options_.max_prompt_tokens,
                                  options_.context));
            return;
        }
        kind = Kind::Asked;
        ++figures.asked;
        figures.turns += turns;
        figures.prompt_tokens += length;
        figures.longest_prompt = std::max(figures.longest_prompt, length);
    } catch (const Error& error) {
        if (error.kind() != ErrorKind::Data) {
            throw;
        }
        leave_out("refused_by_format", error.parts().what);
    }
}

void ResponseSource::judge_all() {
    kinds_.assign(static_cast<std::size_t>(figures_.rows), Kind::Kept);
    std::vector<ResponseFigures> found(static_cast<std::size_t>(std::max(1, options_.num_threads)));
    std::atomic<std::int64_t> next = 0;
    FirstError first_error;
    const auto work = [&](ResponseFigures& figures) noexcept {
        try {
            while (!first_error.failed()) {
                const std::int64_t begin = next.fetch_add(kRowsAtATime);
                const std::int64_t end = std::min(begin + kRowsAtATime, figures_.rows);
                if (begin >= end) {
                    return;
                }
                for (std::int64_t row = begin; row < end; ++row) {
                    judge(row, figures);
                }
            }
        } catch (...) {
            first_error.store(std::current_exception());
        }
    };
    {
        std::vector<std::jthread> threads;  // joined at the end of the scope
        for (std::size_t i = 1; i < found.size(); ++i) {
            threads.emplace_back([&, i] { work(found[i]); });
        }
        work(found[0]);
    }
    first_error.rethrow_if_failed();
    for (const ResponseFigures& figures : found) {
        figures_.asked += figures.asked;
        figures_.kept += figures.kept;
        figures_.turns += figures.turns;
        figures_.prompt_tokens += figures.prompt_tokens;
        figures_.longest_prompt = std::max(figures_.longest_prompt, figures.longest_prompt);
        for (const auto& [reason, rows] : figures.left_out) {
            LeftOutRows& sum = figures_.left_out[reason];
            sum.first = sum.rows == 0 ? rows.first : std::min(sum.first, rows.first);
            sum.rows += rows.rows;
        }
    }
    has_turns_ = figures_.turns > figures_.asked;
}

std::int64_t ResponseSource::capacity() const {
    // Of later turns nobody knows yet how long their prompts are. Modes of thinking differ by some
    // tokens.
    constexpr std::int64_t kModeTokens = 16;
    const std::int64_t prompt =
        has_turns_ ? options_.max_prompt_tokens
                   : std::min(figures_.longest_prompt + kModeTokens, options_.max_prompt_tokens);
    return std::min(options_.context, prompt + options_.max_new_tokens);
}

std::string ResponseSource::content_hash() const {
    std::string text;
    for (const data::RowFile& file : files_) {
        const data::FileContent& content = file.content();
        text += fmt::format("{}{}:{:016x}", text.empty() ? "" : " ", content.bytes, content.hash);
    }
    return text;
}

target::GenerationRequest ResponseSource::request_of(std::int64_t task, const Asked& asked) const {
    const auto length = static_cast<std::int64_t>(asked.tokens.size());
    return {.id = task,
            .prompt = asked.tokens,
            .max_new_tokens = std::min(options_.max_new_tokens, capacity() - length),
            .sampling = options_.sampling,
            .seed = options_.seed,
            .sequence = (static_cast<std::uint64_t>(task) << kTurnBits) +
                        static_cast<std::uint64_t>(asked.row.answered())};
}

std::optional<target::GenerationRequest> ResponseSource::next() {
    while (true) {
        std::int64_t task = -1;
        {
            const std::lock_guard lock(mutex_);
            if (!more_turns_.empty()) {
                task = more_turns_.front();
                more_turns_.pop_front();
                return request_of(task, *in_flight_.at(task));
            }
            for (; next_task_ < num_tasks() && task < 0; ++next_task_) {
                const Kind kind = kinds_[static_cast<std::size_t>(next_task_ / options_.samples)];
                if (kind == Kind::Asked && !journal_->done(next_task_)) {
                    task = next_task_;
                }
            }
        }
        if (task < 0) {
            return std::nullopt;
        }
        if (auto request = ask(task)) {
            return request;
        }
    }
}

// Nothing if this sample's mode makes the prompt too long by its few tokens more.
std::optional<target::GenerationRequest> ResponseSource::ask(std::int64_t task) {
    data::PromptRow::Result result = read(task / options_.samples);
    DFLASH_CHECK(result.prompt.has_value(), "row {} has changed", task / options_.samples);
    auto asked = std::make_unique<Asked>(Asked{.row = std::move(*result.prompt)});
    const bool fits = prepare(*asked, task);
    const std::lock_guard lock(mutex_);
    if (!fits || static_cast<std::int64_t>(asked->tokens.size()) >= capacity()) {
        journal_->add({.task = task, .row = {}, .dropped = "prompt_too_long"});
        return std::nullopt;
    }
    target::GenerationRequest request = request_of(task, *asked);
    in_flight_[task] = std::move(asked);
    return request;
}

void ResponseSource::take(target::Generation generation) {
    const std::int64_t task = generation.id;
    std::unique_ptr<Asked> asked;
    {
        const std::lock_guard lock(mutex_);
        asked = std::move(in_flight_.at(task));
        in_flight_.erase(task);
    }
    std::span<const TokenId> tokens = generation.tokens;
    asked->answer_tokens += static_cast<std::int64_t>(tokens.size());
    asked->cut |= !generation.stopped;
    if (generation.stopped) {
        tokens = tokens.first(tokens.size() - 1);
    }
    asked->most_repeated = std::max(asked->most_repeated, data::repeated_share(tokens));
    data::ReadAnswer answer = data::read_answer(*text_.format,
                                                asked->row.question(),
                                                render_options(task),
                                                asked->prompt,
                                                text_.tokenizer->decode(tokens));
    asked->inexact |= generation.stopped && !answer.renders_back;
    asked->row.answer(std::move(answer.message));

    std::int64_t left = 0;
    if (!asked->row.done()) {
        const auto turns = static_cast<std::int64_t>(asked->row.question().later_turns.size()) + 1;
        if (asked->cut || !prepare(*asked, task) ||
            static_cast<std::int64_t>(asked->tokens.size()) >= capacity()) {
            asked->row.end();
            left = turns;
        }
    }
    const bool done = asked->row.done();
    const ResponseEntry entry = done ? entry_of(task, *asked) : ResponseEntry{};
    const std::lock_guard lock(mutex_);
    turns_left_ += left;
    if (done) {
        journal_->add(entry);
    } else {
        in_flight_[task] = std::move(asked);
        more_turns_.push_back(task);
    }
}

ResponseEntry ResponseSource::entry_of(std::int64_t task, const Asked& asked) const {
    ResponseEntry entry{.task = task,
                        .row = {},
                        .dropped = {},
                        .tokens = asked.answer_tokens,
                        .cut = asked.cut,
                        .inexact = asked.inexact};
    if (asked.most_repeated > options_.max_repeated) {
        entry.dropped = "repeated";
        return entry;
    }
    std::vector<std::pair<std::string, io::Json>> columns;
    if (const std::optional<bool> thinking = thinking_of(task)) {
        columns.emplace_back("thinking", io::Json::boolean(*thinking));
    }
    if (options_.samples > 1) {
        columns.emplace_back("sample", io::Json::integer(task % options_.samples));
    }
    columns.emplace_back("finish_reason", io::Json::string(asked.cut ? "length" : "stop"));
    entry.row = asked.row.to_json(columns);
    return entry;
}

ResponseSums ResponseSource::sums() const {
    const std::lock_guard lock(mutex_);
    return journal_->sums();
}

std::int64_t ResponseSource::turns_left() const {
    const std::lock_guard lock(mutex_);
    return turns_left_;
}

void ResponseSource::publish() {
    const std::lock_guard lock(mutex_);
    std::int64_t task = 0;
    journal_->publish([&](ResponseJournal::Piece& piece) {
        for (; task < num_tasks(); ++task) {
            const std::int64_t row = task / options_.samples;
            const Kind kind = kinds_[static_cast<std::size_t>(row)];
            if (kind == Kind::Asked) {
                piece.task = task++;
                return true;
            }
            if (kind == Kind::Kept && task % options_.samples == 0) {
                std::int64_t at = 0;
                piece.line = on_one_line(file_of(row, at).text(at));
                ++task;
                return true;
            }
        }
        return false;
    });
}

}  // namespace dflash::train
