// SPDX-License-Identifier: Apache-2.0
#include <dflash/core/check.hpp>
#include <dflash/core/error.hpp>
#include <dflash/core/log.hpp>
#include <dflash/core/text.hpp>
#include <dflash/train/answer_progress.hpp>
#include <dflash/train/answering.hpp>
#include <dflash/train/prepared_run.hpp>
#include <dflash/train/run_answers.hpp>
#include <dflash/train/torch_worker.hpp>

#include <algorithm>
#include <filesystem>
#include <fmt/format.h>
#include <fstream>
#include <utility>

namespace dflash::train {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kRowKey = R"("row": )";
// Of text and what stands around it.
constexpr double kBytesPerToken = 5;

std::string path_in(const std::string& run_folder) {
    return (fs::path(run_folder) / "answers.jsonl").string();
}

std::string line_of(const ResponseEntry& entry, const std::string& key, bool cached) {
    std::string line =
        fmt::format(R"({{"sample": {}, "key": "{}", "tokens": {})", entry.task, key, entry.tokens);
    line += entry.cut ? R"(, "cut": true)" : "";
    line += entry.inexact ? R"(, "inexact": true)" : "";
    line += cached ? R"(, "cached": true)" : "";
    // The row is last, so that it can be cut out as it is.
    line += entry.row.empty()
                ? fmt::format(R"(, "dropped": {}}})", io::Json::string(entry.dropped).dump())
                : fmt::format(R"(, {}{}}})", kRowKey, entry.row);
    return line + "\n";
}

bool flag_of(const io::Json& line, std::string_view name) {
    const io::Json* value = line.find(name);
    return value != nullptr && value->is_bool() && value->as_bool();
}

// Tokens a second that a device may choose, before any was timed: on a GPU a step reads all weights
// at two fifths of the bandwidth of an H200; on the CPU two operations a weight and token at two
// fifths of the peak that the plan takes.
double guess_speed(const target::TargetConfig& target, const gpu::Device& device) {
    const auto parameters =
        static_cast<double>(target.num_parameters(target.num_layers, /*with_ends=*/true));
    constexpr double kSlots = 128;
    return device.is_cuda() ? kSlots * 0.4 * 4.8e12 / (2 * parameters)
                            : 0.4 * 60e9 / (2 * parameters);
}

[[noreturn]] void refuse(std::string what, const std::string& where) {
    throw Error(ErrorKind::Config,
                {.what = std::move(what),
                 .where = where,
                 .cause = {},
                 .hint = "Resume with the data and settings as they were, or start a new run"});
}

}  // namespace

bool RunAnswers::are_wanted(const Settings& settings, const data::DataReport& report) {
    if (settings.data.responses == "missing") {
        return report.num_refused("prompt_only") + report.num_refused("empty_answer") > 0;
    }
    return settings.data.responses == "regenerate";
}

RunAnswers::RunAnswers(const Settings& settings, const RunText& text)
    : settings_(settings), text_(text), rules_(AnswerRules::read(settings, text)) {
    if (settings.generate.samples != 1) {
        throw Error(ErrorKind::Config,
                    {.what = fmt::format("generate.samples: got {}, expected 1: training takes one "
                                         "answer to each prompt",
                                         settings.generate.samples),
                     .where = {},
                     .cause = {},
                     .hint = "Make several with dflash generate --samples, and train on its "
                             "output"});
    }
    const bool all = settings.data.responses == "regenerate";
    ResponseOptions options = response_options(
        settings, all ? data::AnswerChoice::All : data::AnswerChoice::Missing, text, rules_);
    options.by_content = true;
    source_ = std::make_unique<ResponseSource>(data::parse_data_list(settings.run.data),
                                               text,
                                               std::move(options),
                                               dataset_options(settings).files);
    places_.resize(static_cast<std::size_t>(source_->figures().rows));
    identity_ = answer_identity(settings, text, rules_);
    identity_.emplace_back("target", target_fingerprint(text.target, text.location.folder));
    cache_ = std::make_unique<ResponseCache>(cache_root(settings.cache), identity_);
    // What chooses among answers, and does not change them.
    identity_.emplace_back("answers", all ? "all" : "missing");
    identity_.emplace_back("generate.thinking", settings.generate.thinking);
    identity_.emplace_back("generate.max_prompt_tokens",
                           std::to_string(settings.generate.max_prompt_tokens));
    identity_.emplace_back("generate.max_repeated",
                           fmt::format("{}", settings.generate.max_repeated));
}

RunAnswers::~RunAnswers() = default;

bool RunAnswers::are_in(const std::string& run_folder) {
    return fs::exists(path_in(run_folder));
}

bool RunAnswers::made_as_in(const std::string& run_folder) const {
    const std::string path = path_in(run_folder);
    std::ifstream file(path, std::ios::binary);
    std::string header;
    return std::getline(file, header) &&
           response_differences(io::Json::parse(header, path), identity_, path).empty();
}

void RunAnswers::take_from(const std::string& run_folder) {
    if (file_) {
        return;
    }
    const std::string path = path_in(run_folder);
    const auto damaged = [&](const Error& error, const std::string& where) {
        const std::string line = where.substr(path.size() + 1);
        throw Error(
            ErrorKind::Data,
            {.what = "a line of the answers of this run is damaged: " + error.parts().what,
             .where = where,
             .cause = {},
             .hint = line == "1" ? "Start a new run: it takes the answers from the cache"
                                 : fmt::format("Without that line its row is taken from the cache "
                                               "or answered anew: sed -i {}d {}",
                                               line,
                                               shell_word(path))});
    };
    const auto take = [&](const JournalLine& line) {
        try {
            read(line);
        } catch (const Error& error) {
            if (!error.parts().hint.empty()) {
                throw;  // not of the line itself
            }
            damaged(error, line.where);
        }
    };
    const std::int64_t size = JournalFile::read(path, take, 0, damaged);
    file_.emplace(path, size);
}

void RunAnswers::keep_in(const std::string& run_folder) {
    take_from(run_folder);
    if (!file_->adding()) {
        file_->begin_adding(response_header(identity_));
    }
}

void RunAnswers::read(const JournalLine& line) {
    if (line.offset == 0) {
        for (const auto& [name, was] : response_differences(line.json, identity_, line.where)) {
            const auto now =
                std::ranges::find(identity_, name, &ResponseIdentity::value_type::first);
            refuse(fmt::format("the answers of this run were made with {} {}; now it is {}",
                               name,
                               was,
                               now->second),
                   line.where);
        }
        return;
    }
    ResponseEntry entry;
    entry.task = line.json.require_integer("sample", line.where);
    if (entry.task < 0 || entry.task >= std::ssize(places_) || !source_->asks(entry.task) ||
        line.json.require_string("key", line.where) != source_->content_key(entry.task)) {
        refuse(fmt::format("the answers of this run are to other rows than the data has now: row "
                           "{} asked something else",
                           entry.task + 1),
               line.where);
    }
    entry.tokens = line.json.require_integer("tokens", line.where);
    entry.cut = flag_of(line.json, "cut");
    entry.inexact = flag_of(line.json, "inexact");
    Place place{.offset = line.offset};
    const std::size_t row = line.text.find(kRowKey);
    if (const io::Json* dropped = line.json.find("dropped"); dropped != nullptr) {
        entry.dropped = dropped->as_string();
    } else {
        entry.row = "there";
        const std::size_t begin = row + kRowKey.size();
        place.offset += static_cast<std::int64_t>(begin);
        place.bytes = static_cast<std::int64_t>(line.text.size() - 1 - begin);
    }
    count(entry, flag_of(line.json, "cached"), place);
}

void RunAnswers::count(const ResponseEntry& entry, bool cached, Place place) {
    sums_.add(entry);
    from_cache_ += cached ? 1 : 0;
    const std::lock_guard lock(mutex_);
    if (entry.row.empty()) {
        place.dropped = reason_index(entry.dropped);
    }
    places_[static_cast<std::size_t>(entry.task)] = place;
}

// Requires mutex_.
std::int32_t RunAnswers::reason_index(const std::string& reason) {
    const auto found = std::ranges::find(reasons_, reason);
    const auto index = found - reasons_.begin();
    if (found == reasons_.end()) {
        reasons_.push_back(reason);
    }
    return static_cast<std::int32_t>(index);
}

data::RowAnswers::Found RunAnswers::find(SampleId id) const {
    if (id >= source_->figures().rows) {
        return {};  // the data grew since; whoever judges the rows finds out
    }
    if (!source_->asks(id)) {
        return source_->too_long(id)
                   ? Found{State::Refused,
                           fmt::format("the question is longer than generate.max_prompt_tokens = "
                                       "{} or the target's context of {} tokens",
                                       settings_.generate.max_prompt_tokens,
                                       text_.target.max_position_embeddings)}
                   : Found{};
    }
    Place place;
    {
        const std::lock_guard lock(mutex_);
        place = places_[static_cast<std::size_t>(id)];
        if (place.dropped >= 0) {
            return {State::Dropped, reasons_[static_cast<std::size_t>(place.dropped)]};
        }
    }
    if (place.offset < 0) {
        return {State::Pending, {}};
    }
    return {State::Answered, file_->read_at(place.offset, place.bytes)};
}

bool RunAnswers::pending(SampleId id) const {
    return source_->asks(id) && !done(id);
}

bool RunAnswers::done(std::int64_t task) const {
    const std::lock_guard lock(mutex_);
    return places_[static_cast<std::size_t>(task)].offset >= 0;
}

std::string RunAnswers::identity_text() const {
    std::string text;
    for (const auto& [name, value] : identity_) {
        text += fmt::format("{}{}: {}", text.empty() ? "" : "; ", name, value);
    }
    return text;
}

void RunAnswers::add(const ResponseEntry& entry) {
    if (!entry.answers.empty()) {
        cache_->add(source_->content_key(entry.task), entry);
    }
    keep(entry, /*cached=*/false);
}

void RunAnswers::keep(const ResponseEntry& entry, bool cached) {
    const std::string line = line_of(entry, source_->content_key(entry.task), cached);
    Place place{.offset = file_->append(line)};
    if (!entry.row.empty()) {
        place.bytes = static_cast<std::int64_t>(entry.row.size());
        place.offset += static_cast<std::int64_t>(line.size()) - 2 - place.bytes;
    }
    count(entry, cached, place);
}

std::vector<SampleId> RunAnswers::left_of(const std::vector<SampleId>& rows) const {
    std::vector<SampleId> left;
    for (const SampleId row : rows) {
        if (pending(row)) {
            left.push_back(row);
        }
    }
    std::ranges::sort(left);
    left.erase(std::ranges::unique(left).begin(), left.end());
    return left;
}

std::int64_t RunAnswers::take_from_cache(const std::vector<SampleId>& rows) {
    std::int64_t taken = 0;
    for (const SampleId row : rows) {
        std::optional<CachedResponse> found = cache_->find(source_->content_key(row));
        if (!found) {
            continue;
        }
        ResponseEntry entry{.task = row,
                            .tokens = found->tokens,
                            .cut = found->cut,
                            .inexact = found->inexact,
                            .answers = {},
                            .repeated = found->repeated};
        if (found->repeated > settings_.generate.max_repeated) {
            entry.dropped = kRepeated;
        } else {
            entry.row = source_->row_with(row, found->answers, found->cut);
        }
        keep(entry, /*cached=*/true);
        ++taken;
    }
    return taken;
}

std::int64_t RunAnswers::take_cached() {
    std::vector<SampleId> rows;
    for (SampleId row = 0; row < std::ssize(places_); ++row) {
        if (pending(row)) {
            rows.push_back(row);
        }
    }
    const std::int64_t taken = take_from_cache(rows);
    if (taken > 0) {
        file_->sync();
        log_info("answers   {} of {} rows are taken from the cache, {}",
                 format_count(taken),
                 format_count(std::ssize(rows)),
                 cache_->folder());
    }
    return taken;
}

bool RunAnswers::answer(const std::vector<SampleId>& rows, const AnswerParts& parts) {
    DFLASH_CHECK(file_.has_value(), "the answers of the run have no file");
    const Activity::Scope activity(parts.whereabouts.loop(), "answer rows");
    std::vector<SampleId> left = left_of(rows);
    if (!left.empty() && parts.signals.stop_requested()) {
        return false;
    }
    bool all = left.empty();
    if (!all && cache_->begin_adding([&] { return parts.signals.stop_requested(); })) {
        // Another run may have answered some of them meanwhile.
        if (const std::int64_t taken = take_from_cache(left); taken > 0) {
            log_info("answers   {} rows were answered by another run meanwhile",
                     format_count(taken));
        }
        left = left_of(left);
        all = left.empty() || generate(left, parts);
        cache_->end_adding();
    }
    file_->sync();
    return all;
}

bool RunAnswers::generate(const std::vector<SampleId>& rows, const AnswerParts& parts) {
    StatusBoard::Activity now =
        parts.board.enter(report::RunState::Answering, "loading the target");
    rules_.warn();
    Answering answering(text_,
                        {.devices = parts.devices,
                         .stop_tokens = rules_.stop_tokens,
                         .capacity = source_->capacity(),
                         .batch = settings_.generate.batch,
                         .cache = settings_.cache},
                        parts.whereabouts,
                        parts.watchdog);
    const double speed = answering.tokens_per_second();
    const std::int64_t wanted = std::ssize(rows);
    log_info(
        "answers   {} rows to answer, {}{}: {} at a time, at most {} tokens each, in at most {}",
        format_count(wanted),
        rules_.describe_sampling(),
        source_->can_choose_thinking() ? ", thinking " + settings_.generate.thinking : "",
        format_count(answering.slots()),
        format_count(settings_.generate.max_new_tokens),
        format_seconds(static_cast<double>(wanted * settings_.generate.max_new_tokens) /
                       std::max(speed, 1e-9)));
    const std::int64_t before = sums_.done();
    const std::int64_t inexact_before = sums_.inexact;
    source_->set_keeper(*this);
    source_->ask_for({rows.begin(), rows.end()});
    AnswerProgress progress(settings_.report.line_every.seconds, wanted, 0);
    const Activity::Scope activity(
        parts.whereabouts.loop(), "wait for answers", Activity::kNoNumber, Activity::Kind::Waits);
    answering.run(*source_, parts.signals, [&] {
        progress.tell(source_->sums().done() - before, answering.tokens_chosen());
        now = parts.board.enter(report::RunState::Answering, progress.text());
    });
    generating_s_ += progress.seconds();
    generated_ += answering.tokens_chosen();
    const std::int64_t done = sums_.done() - before;
    log_info("answers   {} of {} rows answered in {}, {} tokens/s",
             format_count(done),
             format_count(wanted),
             format_seconds(progress.seconds()),
             format_count(static_cast<std::int64_t>(static_cast<double>(answering.tokens_chosen()) /
                                                    std::max(progress.seconds(), 1e-3))));
    if (sums_.inexact > inexact_before) {
        log_warning(
            "{} of these answers do not come back as the tokens that the target wrote (white "
            "space, marks, broken characters, other tokens of the same text)",
            format_count(sums_.inexact - inexact_before));
    }
    return done == wanted;
}

std::int64_t RunAnswers::num_in_cache() const {
    std::int64_t found = 0;
    for (SampleId row = 0; row < std::ssize(places_); ++row) {
        found += pending(row) && cache_->has(source_->content_key(row)) ? 1 : 0;
    }
    return found;
}

// Of one answer. Before there is any, half of the most that it may have.
double RunAnswers::expected_tokens() const {
    if (sums_.done() > 0) {
        return static_cast<double>(sums_.tokens) / static_cast<double>(sums_.done());
    }
    return cache_->mean_tokens().value_or(static_cast<double>(settings_.generate.max_new_tokens) /
                                          2);
}

data::DataReport RunAnswers::expected(data::DataReport report) const {
    const ResponseFigures& figures = source_->figures();
    const auto pending = static_cast<double>(report.pending);
    const double answer = std::min(expected_tokens(), static_cast<double>(report.max_length));
    const double prompt = static_cast<double>(figures.prompt_tokens) /
                          static_cast<double>(std::max<std::int64_t>(1, figures.asked));
    const double tokens = std::min(prompt + answer, static_cast<double>(report.max_length));
    report.tokens += static_cast<std::int64_t>(pending * tokens);
    report.trainable_tokens += static_cast<std::int64_t>(pending * answer);
    report.anchors += static_cast<std::int64_t>(
        pending * std::min(answer, static_cast<double>(report.max_anchors)));
    return report;
}

std::vector<std::string> RunAnswers::plan_lines(const std::vector<gpu::Device>& devices) const {
    const ResponseFigures& figures = source_->figures();
    const std::int64_t cached = num_in_cache();
    const std::int64_t here = sums_.done();
    const std::int64_t left = figures.asked - here - cached;
    std::vector<std::string> lines;
    lines.push_back(fmt::format(
        "answers   {} of {} rows are the target's to answer ({}{}): {}{} in the cache, {} to be "
        "answered",
        format_count(figures.asked),
        format_count(figures.rows),
        rules_.describe_sampling(),
        source_->can_choose_thinking() ? ", thinking " + settings_.generate.thinking : "",
        here > 0 ? fmt::format("{} in the run's folder, ", format_count(here)) : "",
        format_count(cached),
        format_count(left)));
    if (left > 0) {
        double speed = 0;
        for (const gpu::Device& device : devices) {
            speed += guess_speed(text_.target, device);
        }
        const auto turns = static_cast<double>(figures.turns) / static_cast<double>(figures.asked);
        const double tokens = expected_tokens() * turns * static_cast<double>(left);
        const bool known = here > 0 || cache_->size() > 0;
        // In the cache and in the run's folder.
        const double bytes = 2 * kBytesPerToken * tokens + 2 * static_cast<double>(figures.bytes);
        lines.push_back(
            fmt::format("  about {} tokens ({} a row{}; at most {}), about {} (a first guess; the "
                        "run says more "
                        "once the target is loaded) and {} of disk",
                        format_count(static_cast<std::int64_t>(tokens)),
                        format_count(static_cast<std::int64_t>(expected_tokens() * turns)),
                        known ? ", as those before" : ", nothing is known yet",
                        format_count(left * settings_.generate.max_new_tokens),
                        format_seconds(tokens / speed),
                        format_bytes(static_cast<std::int64_t>(bytes))));
        lines.push_back(left > settings_.generate.shard_rows
                            ? fmt::format("  answering and training take turns, {} rows at a time "
                                          "(generate.shard_rows)",
                                          format_count(settings_.generate.shard_rows))
                            : std::string("  all are answered before training begins"));
    }
    for (const auto& [reason, rows] : figures.left_out) {
        lines.push_back(fmt::format("  {} {} cannot be answered ({}), the first: {}",
                                    format_count(rows.rows),
                                    rows.rows == 1 ? "row" : "rows",
                                    reason,
                                    escape_controls(rows.first)));
    }
    return lines;
}

std::vector<std::string> RunAnswers::summary_lines() const {
    std::vector<std::string> lines;
    const std::int64_t done = sums_.done();
    lines.push_back(fmt::format(
        "answers   {} of {} rows: {} answered by the target{}, {} taken from the cache; {} tokens "
        "each",
        format_count(done),
        format_count(num_asked()),
        format_count(done - from_cache_),
        generated_ > 0
            ? fmt::format(
                  " ({} tokens in {})", format_count(generated_), format_seconds(generating_s_))
            : "",
        format_count(from_cache_),
        format_count(done > 0 ? sums_.tokens / done : 0)));
    for (const auto& [reason, count] : sums_.dropped) {
        lines.push_back(fmt::format("  {} dropped: {}", format_count(count), reason));
    }
    if (sums_.cut > 0) {
        lines.push_back(
            fmt::format("  {} cut at generate.max_new_tokens", format_count(sums_.cut)));
    }
    if (sums_.inexact > 0) {
        lines.push_back(fmt::format("  {} do not come back as the tokens that the target wrote",
                                    format_count(sums_.inexact)));
    }
    return lines;
}

}  // namespace dflash::train
