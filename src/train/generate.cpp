// SPDX-License-Identifier: Apache-2.0
#include <dflash/core/error.hpp>
#include <dflash/core/log.hpp>
#include <dflash/core/text.hpp>
#include <dflash/report/console.hpp>
#include <dflash/train/answer_progress.hpp>
#include <dflash/train/answer_rules.hpp>
#include <dflash/train/answering.hpp>
#include <dflash/train/fault_plan.hpp>
#include <dflash/train/generate.hpp>
#include <dflash/train/gpu_check.hpp>
#include <dflash/train/response_journal.hpp>
#include <dflash/train/watchdog.hpp>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fmt/format.h>
#include <fmt/ranges.h>

namespace dflash::train {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) {
    return std::chrono::duration<double>(Clock::now() - begin).count();
}

void print_rows(const ResponseSource& source, const Settings& settings) {
    const ResponseFigures& figures = source.figures();
    log_info("rows      {} ({}): {} to be answered, {} kept as they are, {} left out",
             format_count(figures.rows),
             format_bytes(figures.bytes),
             format_count(figures.asked),
             format_count(figures.kept),
             format_count(figures.num_left_out()));
    for (const auto& [reason, rows] : figures.left_out) {
        log_warning("{} {} left out ({}), the first: {}",
                    format_count(rows.rows),
                    rows.rows == 1 ? "row is" : "rows are",
                    reason,
                    escape_controls(rows.first));
    }
    const double bad = static_cast<double>(figures.num_left_out());
    if (bad > settings.data.max_bad_fraction * static_cast<double>(figures.rows)) {
        throw Error(ErrorKind::Data,
                    {.what = fmt::format("{} of {} rows cannot be answered, more than "
                                         "data.max_bad_fraction = {}",
                                         format_count(figures.num_left_out()),
                                         format_count(figures.rows),
                                         settings.data.max_bad_fraction),
                     .where = figures.left_out.begin()->second.first,
                     .cause = {},
                     .hint = "Correct the rows, or allow more: --set data.max_bad_fraction=1"});
    }
    if (figures.asked == 0) {
        throw Error(ErrorKind::Data,
                    {.what = fmt::format("nothing to answer: all {} rows have their answers, or "
                                         "are finished text",
                                         format_count(figures.rows)),
                     .where = settings.run.data,
                     .cause = {},
                     .hint = "--all writes the answers anew that rows have"});
    }
}

// Upper bounds, and what is free.
void print_plan(const ResponseSource& source,
                const Settings& settings,
                const ResponseJournal& journal,
                double tokens_per_second) {
    const ResponseFigures& figures = source.figures();
    const std::int64_t wanted = source.num_wanted();
    const std::int64_t left = wanted - journal.num_done();
    const auto most_tokens = static_cast<double>(figures.turns * settings.generate.samples *
                                                 settings.generate.max_new_tokens) *
                             static_cast<double>(left) / static_cast<double>(wanted);
    constexpr double kBytesPerToken = 5;
    // The journal and the output that is made of it.
    const double most_bytes = 2 * (static_cast<double>(figures.bytes * settings.generate.samples) +
                                   kBytesPerToken * most_tokens);
    const std::filesystem::path folder =
        std::filesystem::absolute(settings.run.output).parent_path();
    std::error_code ignored;
    const auto space = std::filesystem::space(folder, ignored);
    log_info(
        "plan      {} answers, {} prompt tokens; at most {} tokens of answers in {}, and {} "
        "of disk ({} free)",
        format_count(left),
        format_count(figures.prompt_tokens * settings.generate.samples),
        format_count(static_cast<std::int64_t>(most_tokens)),
        format_seconds(most_tokens / std::max(tokens_per_second, 1e-9)),
        format_bytes(static_cast<std::int64_t>(most_bytes)),
        ignored ? std::string("?") : format_bytes(static_cast<std::int64_t>(space.available)));
    if (!ignored && most_bytes > static_cast<double>(space.available)) {
        log_warning("the answers may need more than the {} that are free in {}",
                    format_bytes(static_cast<std::int64_t>(space.available)),
                    folder.string());
    }
}

void print_summary(const ResponseSource& source,
                   const Settings& settings,
                   double seconds,
                   std::int64_t tokens) {
    const ResponseSums sums = source.sums();
    const auto answered = static_cast<double>(std::max<std::int64_t>(1, sums.answered));
    log_info("done      {} answers, {} tokens each; {} tokens in {}, {} tokens/s",
             format_count(sums.answered),
             format_count(static_cast<std::int64_t>(static_cast<double>(sums.tokens) / answered)),
             format_count(tokens),
             format_seconds(seconds),
             format_count(
                 static_cast<std::int64_t>(static_cast<double>(tokens) / std::max(seconds, 1e-3))));
    for (const auto& [reason, count] : sums.dropped) {
        log_warning("{} answers were dropped: {}", format_count(count), reason);
    }
    if (sums.cut > 0) {
        log_warning(
            "{} answers ({:.1f} %) were cut at the end of their room and have "
            "finish_reason \"length\"; a larger generate.max_new_tokens lets them end",
            format_count(sums.cut),
            100.0 * static_cast<double>(sums.cut) / answered);
    }
    if (sums.inexact > 0) {
        log_warning(
            "{} answers ({:.1f} %) do not come back as the tokens that the model wrote "
            "(white space, marks, broken characters, other tokens of the same text)",
            format_count(sums.inexact),
            100.0 * static_cast<double>(sums.inexact) / answered);
    }
    if (source.turns_left() > 0) {
        log_warning("{} later turns were not asked: the conversation was too long or cut",
                    format_count(source.turns_left()));
    }
    log_info("output    {}", settings.run.output);
    log_info("next      dflash --target {} --data {}",
             shell_word(settings.run.target),
             shell_word(settings.run.output));
}

std::string join_names(const std::vector<gpu::Device>& devices) {
    std::vector<std::string> names;
    for (const gpu::Device& device : devices) {
        names.push_back(device.name);
    }
    return fmt::format("{}", fmt::join(names, " "));
}

ResponseIdentity identity_of(const Settings& settings,
                             bool all,
                             const RunText& text,
                             const AnswerRules& rules,
                             const ResponseSource& source) {
    const GenerateSettings& generate = settings.generate;
    ResponseIdentity identity = answer_identity(settings, text, rules);
    const ResponseIdentity more = {
        {"target", text.location.name + " " + text.location.revision},
        {"data", source.content_hash()},
        {"answers", all ? "all" : "missing"},
        {"generate.thinking", generate.thinking},
        {"generate.samples", std::to_string(generate.samples)},
        {"generate.max_prompt_tokens", std::to_string(generate.max_prompt_tokens)},
        {"generate.max_repeated", fmt::format("{}", generate.max_repeated)}};
    identity.insert(identity.end(), more.begin(), more.end());
    return identity;
}

}  // namespace

int generate(const GenerateRequest& request, StopSignals& signals) {
    const Settings& settings = request.settings;
    if (settings.run.output.empty()) {
        throw Error(ErrorKind::Config,
                    {.what = "no output file",
                     .where = {},
                     .cause = {},
                     .hint = "Name a file for the answers: --output answers.jsonl"});
    }
    const std::vector<data::DataFile> files = data::parse_data_list(settings.run.data);
    if (files.empty()) {
        throw Error(ErrorKind::Config,
                    {.what = "no rows to answer",
                     .where = {},
                     .cause = {},
                     .hint = "Name a JSON-lines file with --data prompts.jsonl"});
    }
    ResponseJournal::check_output(settings.run.output);
    const std::vector<gpu::Device> devices = gpu::parse_devices(settings.run.gpus);
    check_gpus(devices);
    set_faults_from_environment();
    Whereabouts whereabouts;
    Watchdog watchdog(whereabouts, {.after_s = settings.watchdog.after.seconds});
    const Activity::Scope activity(whereabouts.loop(), "prepare");
    const RunText text = open_text(settings);
    target::judge_target(text.location.folder);
    const AnswerRules rules = AnswerRules::read(settings, text);
    log_info("target    {} ({})", text.location.name, text.location.folder);
    log_info("format    {} ({})", text.format->name(), text.format_origin);
    ResponseSource source(
        files,
        text,
        response_options(settings,
                         request.all ? data::AnswerChoice::All : data::AnswerChoice::Missing,
                         text,
                         rules),
        dataset_options(settings).files);
    log_info("sampling  {}{}{}",
             rules.describe_sampling(),
             rules.found_config ? "" : " (there is no generation_config.json)",
             source.can_choose_thinking() ? ", thinking " + settings.generate.thinking : "");
    rules.warn();
    print_rows(source, settings);

    ResponseJournal journal(settings.run.output,
                            identity_of(settings, request.all, text, rules, source),
                            source.num_tasks());
    source.set_keeper(journal);
    if (journal.resumed() > 0) {
        log_info("resumed   {} answers are there, in {}",
                 format_count(journal.resumed()),
                 journal.folder());
    }
    Clock::time_point begin = Clock::now();
    std::int64_t tokens = 0;
    if (journal.num_done() < source.num_wanted()) {
        Answering answering(text,
                            {.devices = devices,
                             .stop_tokens = rules.stop_tokens,
                             .capacity = source.capacity(),
                             .batch = settings.generate.batch,
                             .cache = settings.cache},
                            whereabouts,
                            watchdog);
        log_info("devices   {}: {} answers of up to {} tokens at a time",
                 join_names(devices),
                 format_count(answering.slots()),
                 format_count(source.capacity()));
        print_plan(source, settings, journal, answering.tokens_per_second());
        begin = Clock::now();
        AnswerProgress progress(
            settings.report.line_every.seconds, source.num_wanted(), journal.resumed());
        const Activity::Scope answers(
            whereabouts.loop(), "wait for answers", Activity::kNoNumber, Activity::Kind::Waits);
        answering.run(source, signals, [&] {
            progress.tell(source.sums().done(), answering.tokens_chosen());
            report::Console& console = report::console();
            if (console.block_space()) {
                console.show_block({"answers   " + progress.text()});
            }
        });
        tokens = answering.tokens_chosen();
        report::console().clear_block();
    }
    if (journal.num_done() < source.num_wanted()) {
        log_info("stopped   {} of {} answers are kept in {}; the same command goes on:",
                 format_count(journal.num_done()),
                 format_count(source.num_wanted()),
                 journal.folder());
        log_info("          {}", request.command_line);
        return signals.stop_signal.load() == SIGINT ? 130 : 143;
    }
    source.publish(journal);
    print_summary(source, settings, seconds_since(begin), tokens);
    return 0;
}

}  // namespace dflash::train
