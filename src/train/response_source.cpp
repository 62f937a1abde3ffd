// SPDX-License-Identifier: Apache-2.0
#include <dflash/core/check.hpp>
#include <dflash/core/error.hpp>
#include <dflash/core/first_error.hpp>
#include <dflash/core/random.hpp>
#include <dflash/core/sha256.hpp>
#include <dflash/data/answer.hpp>
#include <dflash/data/repetition.hpp>
#include <dflash/data/row_answers.hpp>
#include <dflash/train/response_source.hpp>

#include <algorithm>
#include <atomic>
#include <charconv>
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

// 128 of the bits of SHA-256.
std::array<std::uint64_t, 2> content_hash_of(std::string_view text) {
    const std::string hex = sha256_hex(text);
    std::array<std::uint64_t, 2> hash{};
    for (std::size_t i = 0; i < hash.size(); ++i) {
        std::from_chars(hex.data() + 16 * i, hex.data() + 16 * (i + 1), hash[i], 16);
    }
    return hash;
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
        if (file.weight != 1 && !options_.by_content) {
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
    if (options_.by_content) {
        tell_repetitions_apart();
    }
    std::vector<std::int64_t> all;
    for (std::int64_t task = 0; task < num_tasks(); ++task) {
        if (asks(task / options_.samples)) {
            all.push_back(task);
        }
    }
    ask_for(std::move(all));
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
    RandomStream coin(options_.seed, Purpose::Thinking, 0, number_of(task));
    return coin.below(2) == 1;
}

// What tells the random numbers of a task from those of others.
std::uint64_t ResponseSource::number_of(std::int64_t task) const {
    if (!options_.by_content) {
        return static_cast<std::uint64_t>(task);
    }
    const ContentHash& content = contents_[static_cast<std::size_t>(task / options_.samples)];
    return content[0] + static_cast<std::uint64_t>(task % options_.samples);
}

std::string ResponseSource::content_key(std::int64_t task) const {
    DFLASH_CHECK(options_.by_content, "names by content of task {}", task);
    const ContentHash& content = contents_[static_cast<std::size_t>(task / options_.samples)];
    const std::optional<bool> thinking = thinking_of(task);
    return fmt::format("{:016x}{:016x}-{}{}",
                       content[0],
                       content[1],
                       task % options_.samples,
                       !thinking   ? ""
                       : *thinking ? "-on"
                                   : "-off");
}

void ResponseSource::tell_repetitions_apart() {
    std::map<ContentHash, std::int64_t> seen;
    for (std::int64_t row = 0; row < figures_.rows; ++row) {
        if (!asks(row)) {
            continue;
        }
        ContentHash& content = contents_[static_cast<std::size_t>(row)];
        if (const std::int64_t before = seen[content]++; before > 0) {
            content = content_hash_of(
                fmt::format("{:016x}{:016x} again {}", content[0], content[1], before));
        }
    }
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
            leave_out(data::kPromptTooLong,
                      fmt::format("the prompt has {} tokens, generate.max_prompt_tokens is {} and "
                                  "the target's context {}",
                                  length,
                                  options_.max_prompt_tokens,
                                  options_.context));
            kind = Kind::TooLong;
            return;
        }
        if (options_.by_content) {
            data::RenderOptions render = options_.render;
            render.add_generation_prompt = true;
            contents_[static_cast<std::size_t>(row)] =
                content_hash_of(text_.format->render(asked.row.question(), render).text + "\n" +
                                asked.row.later_turns());
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
    contents_.resize(options_.by_content ? kinds_.size() : 0);
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
            .sequence =
                (number_of(task) << kTurnBits) + static_cast<std::uint64_t>(asked.row.answered())};
}

void ResponseSource::ask_for(std::vector<std::int64_t> tasks) {
    const std::lock_guard lock(mutex_);
    // What a stop left unfinished is asked anew.
    in_flight_.clear();
    more_turns_.clear();
    order_ = std::move(tasks);
    next_ = 0;
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
            for (; next_ < order_.size() && task < 0; ++next_) {
                if (!keeper_->done(order_[next_])) {
                    task = order_[next_];
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
        keeper_->add({.task = task, .row = {}, .dropped = data::kPromptTooLong});
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
    tokens = generation.stopped ? tokens.first(tokens.size() - 1)
                                : data::without_cut_character(*text_.tokenizer, tokens);
    asked->most_repeated = std::max(asked->most_repeated, data::repeated_share(tokens));
    data::ReadAnswer answer = data::read_answer(*text_.format,
                                                *text_.tokenizer,
                                                asked->row.question(),
                                                render_options(task),
                                                {asked->prompt, asked->tokens},
                                                {text_.tokenizer->decode(tokens), tokens},
                                                !generation.stopped);
    asked->inexact |= !answer.comes_back;
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
        keeper_->add(entry);
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
    entry.answers = asked.row.answers();
    entry.repeated = asked.most_repeated;
    if (asked.most_repeated > options_.max_repeated) {
        entry.dropped = kRepeated;
    } else {
        entry.row = to_row(task, asked.row, asked.cut);
    }
    return entry;
}

std::string ResponseSource::to_row(std::int64_t task, const data::PromptRow& row, bool cut) const {
    std::vector<std::pair<std::string, io::Json>> columns;
    if (const std::optional<bool> thinking = thinking_of(task)) {
        columns.emplace_back("thinking", io::Json::boolean(*thinking));
    }
    if (options_.samples > 1) {
        columns.emplace_back("sample", io::Json::integer(task % options_.samples));
    }
    columns.emplace_back("finish_reason", io::Json::string(cut ? "length" : "stop"));
    return row.to_json(columns);
}

std::string ResponseSource::row_with(std::int64_t task,
                                     const std::vector<io::Json>& answers,
                                     bool cut) const {
    data::PromptRow::Result result = read(task / options_.samples);
    DFLASH_CHECK(result.prompt.has_value(), "row {} has changed", task / options_.samples);
    for (const io::Json& answer : answers) {
        result.prompt->restore(answer);
    }
    result.prompt->end();
    return to_row(task, *result.prompt, cut);
}

ResponseSums ResponseSource::sums() const {
    const std::lock_guard lock(mutex_);
    return keeper_->sums();
}

std::int64_t ResponseSource::turns_left() const {
    const std::lock_guard lock(mutex_);
    return turns_left_;
}

void ResponseSource::publish(ResponseJournal& journal) {
    const std::lock_guard lock(mutex_);
    std::int64_t task = 0;
    journal.publish([&](ResponseJournal::Piece& piece) {
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
