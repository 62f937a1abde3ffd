// SPDX-License-Identifier: Apache-2.0
#include <dflash/core/error.hpp>
#include <dflash/core/log.hpp>
#include <dflash/core/text.hpp>
#include <dflash/io/json.hpp>
#include <dflash/model/draft_format.hpp>
#include <dflash/report/chart.hpp>
#include <dflash/report/console.hpp>
#include <dflash/train/acceptance_warnings.hpp>
#include <dflash/train/draft_source.hpp>
#include <dflash/train/run_report.hpp>
#include <dflash/train/run_search.hpp>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <fstream>

namespace dflash::train {
namespace {

/// Of the data's answers: below that their tau is chance, and no warning rests on it.
constexpr std::int64_t kFewestAnchors = 256;

io::Json numbers(const std::vector<double>& values) {
    std::vector<io::Json> items;
    for (const double value : values) {
        items.push_back(io::Json::number(value));
    }
    return io::Json::array(std::move(items));
}

double wall_time_s() {
    return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch())
        .count();
}

std::string percent_row(const std::vector<double>& shares) {
    std::string row;
    for (const double share : shares) {
        row += fmt::format("{:6.1f}", 100 * share);
    }
    return row;
}

/// Zeros where there is no moment before.
Rates rates_between(const std::optional<Moment>& before, const Moment& now) {
    const double seconds = before ? now.progress.trained_s - before->progress.trained_s : 0;
    if (seconds <= 0) {
        return {};
    }
    const auto rate = [&](std::int64_t tokens) { return static_cast<double>(tokens) / seconds; };
    const auto share = [&](double waited_s) { return std::clamp(waited_s / seconds, 0.0, 1.0); };
    return {
        .drafter_tokens_per_s = rate(now.progress.tokens - before->progress.tokens),
        .target_tokens_per_s =
            rate(now.pipeline.tokens_captured - before->pipeline.tokens_captured),
        .drafter_waited = share(now.pipeline.step_waited_s - before->pipeline.step_waited_s),
        .target_waited = share(now.pipeline.target_waited_s - before->pipeline.target_waited_s)};
}

/// `before_training`: nothing but the weights can be the reason.
void require_finite_evaluation(double loss, const Progress& progress, bool before_training) {
    if (!std::isfinite(loss)) {
        throw Error(
            ErrorKind::Numeric,
            {.what = fmt::format(
                 "held-out loss at step {}: got {}, expected a finite number", progress.step, loss),
             .where = {},
             .cause = {},
             .hint = before_training
                         ? "Look for NaN or infinity in the weights of the target, and of "
                           "--init if it is given"
                         : "Start a new run with a lower train.lr or a smaller train.clip, "
                           "from the last saved drafter with --init RUN/latest/draft"});
    }
}

void say_how_to_serve(const std::string& draft_folder, const std::string& target) {
    try {
        const model::DraftConfig config = read_draft_config(draft_folder);
        for (const model::ServeCommand& serve :
             serve_commands(model::DraftFormat::Zlab, config, target, draft_folder)) {
            log_info("{}", to_line(serve));
        }
    } catch (const Error& error) {
        // Somebody has removed it: no reason to fail a run that is over.
        log_warning("{}", error.what());
    }
}

void tell(const std::optional<Notice>& notice) {
    if (notice) {
        log_line(notice->warning ? LogLevel::Warning : LogLevel::Info, notice->text);
    }
}

}  // namespace

RunReport::RunReport(const std::string& folder,
                     std::int64_t resumed_step,
                     const Settings& settings,
                     NumericPolicy numeric_policy,
                     StatusBoard& board)
    : metrics_(folder + "/metrics.jsonl", resumed_step),
      tensorboard_(folder, resumed_step),
      settings_(settings),
      board_(board),
      figures_{settings.report.every.seconds, {}, {}, {}, false},
      line_{settings.report.line_every.seconds, {}, {}, {}, false},
      numeric_policy_(std::move(numeric_policy)) {
    if (resumed_step > 0) {
        read_decodings(folder + "/metrics.jsonl");
    }
    if (resumed_step == 0) {
        time_left_.add(0, 0);
        last_step_ = Moment{};
        figures_.since = Moment{};
        line_.since = Moment{};
    }
}

bool RunReport::Interval::pass(const Moment& now) {
    const auto time = Clock::now();
    if (renewed_at && std::chrono::duration<double>(time - *renewed_at).count() < every_s) {
        if (!whole) {
            rates = rates_between(since, now);
        }
        return false;
    }
    rates = rates_between(since, now);
    whole = renewed_at.has_value();
    since = now;
    renewed_at = time;
    return true;
}

void RunReport::step(const Progress& progress,
                     const StepReport& step,
                     double learning_rate,
                     const pipeline::PipelineStats& pipeline,
                     double fraction_done) {
    const Moment now{progress, pipeline};
    const Rates rates = rates_between(last_step_, now);
    metrics_.write(
        io::Json::object({{"kind", io::Json::string("step")},
                          {"step", io::Json::integer(progress.step)},
                          {"epoch", io::Json::integer(progress.cursor.epoch)},
                          {"rows", io::Json::integer(progress.rows)},
                          {"samples", io::Json::integer(progress.samples)},
                          {"tokens", io::Json::integer(progress.tokens)},
                          {"labels", io::Json::integer(step.labels)},
                          {"loss", io::Json::number(step.loss)},
                          {"accuracy", io::Json::number(step.accuracy)},
                          {"lr", io::Json::number(learning_rate)},
                          {"grad_norm", io::Json::number(step.gradient_norm)},
                          {"skipped", io::Json::boolean(step.non_finite.has_value())},
                          {"seconds", io::Json::number(progress.trained_s)},
                          {"drafter_tokens_per_s", io::Json::number(rates.drafter_tokens_per_s)},
                          {"target_tokens_per_s", io::Json::number(rates.target_tokens_per_s)},
                          {"drafter_waited", io::Json::number(rates.drafter_waited)},
                          {"target_waited", io::Json::number(rates.target_waited)},
                          {"fraction_done", io::Json::number(fraction_done)}}));
    tensorboard_.add(progress.step,
                     wall_time_s(),
                     {{"train/loss", step.loss},
                      {"train/accuracy", step.accuracy},
                      {"train/lr", learning_rate},
                      {"train/grad_norm", step.gradient_norm},
                      {"train/skipped", step.non_finite ? 1.0 : 0.0},
                      {"speed/drafter_tokens_per_s", rates.drafter_tokens_per_s},
                      {"speed/target_tokens_per_s", rates.target_tokens_per_s},
                      {"speed/drafter_waited", rates.drafter_waited},
                      {"speed/target_waited", rates.target_waited}});
    if (!step.non_finite) {
        loss_curve_.emplace_back(static_cast<double>(progress.step), step.loss);
    }
    last_step_ = now;

    const double steps_done =
        settings_.train.max_steps
            ? static_cast<double>(progress.step) / static_cast<double>(*settings_.train.max_steps)
            : 0;
    time_left_.add(progress.trained_s, std::min(std::max(fraction_done, steps_done), 1.0));
    figures_.pass(now);
    board_.step({.step = progress.step,
                 .epoch = progress.cursor.epoch,
                 .tokens = progress.tokens,
                 .loss = step.loss,
                 .accuracy = step.accuracy,
                 .learning_rate = learning_rate,
                 .gradient_norm = step.gradient_norm,
                 .fraction_done = fraction_done,
                 .drafter_tokens_per_s = figures_.rates.drafter_tokens_per_s,
                 .target_tokens_per_s = figures_.rates.target_tokens_per_s,
                 .drafter_waited = figures_.rates.drafter_waited,
                 .target_waited = figures_.rates.target_waited,
                 .seconds = progress.trained_s,
                 .left_s = time_left_.left_s()});
    if (line_.pass(now)) {
        log_info(
            "step {:>6}  {:>5.1f} %  loss {:.4f}  accuracy {:5.1f} %  lr {:.2e}  {} tok/s  waited: "
            "drafter {:.0f} %, target {:.0f} %{}",
            progress.step,
            100 * fraction_done,
            step.loss,
            100 * step.accuracy,
            learning_rate,
            format_count(static_cast<std::int64_t>(line_.rates.drafter_tokens_per_s)),
            100 * line_.rates.drafter_waited,
            100 * line_.rates.target_waited,
            time_left_.left_s() ? fmt::format("  {} left", format_seconds(*time_left_.left_s()))
                                : std::string());
    }
    if (const auto warning = numeric_policy_.take(progress.step, step.non_finite)) {
        log_warning("{}", *warning);
    } else {
        tell(loss_watch_.take(progress.step, step.loss));
    }
    tell(speed_watch_.take({.at_s = progress.trained_s,
                            .tokens = progress.tokens,
                            .drafter_waited_s = pipeline.step_waited_s,
                            .target_waited_s = pipeline.target_waited_s,
                            .data_waited_s = pipeline.data_waited_s}));
}

void RunReport::evaluation(const Progress& progress, const EvalResult& result) {
    metrics_.write(io::Json::object(
        {{"kind", io::Json::string("eval")},
         {"step", io::Json::integer(progress.step)},
         {"loss", io::Json::number(result.loss)},
         {"accuracy", io::Json::number(result.accuracy)},
         {"accuracy_by_slot", numbers(result.accuracy_by_slot)},
         {"acceptance_length", io::Json::number(result.acceptance_length)},
         {"bigram_accuracy_by_slot", numbers(result.bigram_accuracy_by_slot)},
         {"bigram_acceptance_length", io::Json::number(result.bigram_acceptance_length)},
         {"blocks", io::Json::integer(result.blocks)},
         {"seconds", io::Json::number(progress.trained_s)},
         {"eval_seconds", io::Json::number(result.seconds)}}));
    tensorboard_.add(progress.step,
                     wall_time_s(),
                     {{"eval/loss", result.loss},
                      {"eval/accuracy", result.accuracy},
                      {"eval/accuracy_slot_1", result.accuracy_by_slot.front()},
                      {"eval/acceptance_length", result.acceptance_length}});
    evaluations_.emplace_back(progress.step, result);
    speed_watch_.pause();
    board_.held_out({.step = progress.step,
                     .loss = result.loss,
                     .acceptance_length = result.acceptance_length,
                     .bigram_acceptance_length = result.bigram_acceptance_length});
    log_info(
        "held out at step {}: loss {:.4f}, slot 1 right {:.1f} % (bigram table {:.1f} %), expected "
        "acceptance length {:.3f} "
        "(bigram table {:.3f}), {} blocks in {}",
        progress.step,
        result.loss,
        100 * result.accuracy_by_slot.front(),
        100 * result.bigram_accuracy_by_slot.front(),
        result.acceptance_length,
        result.bigram_acceptance_length,
        format_count(result.blocks),
        format_seconds(result.seconds));
    require_finite_evaluation(result.loss, progress, progress.step == 0);
}

/// What an earlier process of the run has written.
void RunReport::read_decodings(const std::string& path) {
    std::ifstream file(path);
    for (std::string line; std::getline(file, line);) {
        if (line.find("\"acceptance\"") == std::string::npos) {
            continue;
        }
        const io::Json json = io::Json::parse(line, path);
        if (json.require_string("kind", path) != "acceptance") {
            continue;
        }
        decoded_step_ = json.require_integer("step", path);
        if (*decoded_step_ == 0) {
            first_tau_ = json.require_number("tau", path);
        }
    }
}

void RunReport::acceptance(const Progress& progress, const AcceptanceResult& result) {
    const double tau = result.drafter.tau();
    const bool answers = result.answers.texts() > 0;
    decoded_step_ = progress.step;
    if (progress.step == 0) {
        first_tau_ = tau;
    }
    metrics_.write(
        io::Json::object({{"kind", io::Json::string("acceptance")},
                          {"step", io::Json::integer(progress.step)},
                          {"tau", io::Json::number(tau)},
                          {"tau_at_start", first_tau_ ? io::Json::number(*first_tau_) : io::Json()},
                          {"tokens_per_call", io::Json::number(result.drafter.tokens_per_call())},
                          {"kept_by_slot", numbers(result.drafter.kept_by_slot())},
                          {"right_by_slot", numbers(result.drafter.right_by_slot())},
                          {"prompts", io::Json::integer(result.drafter.texts())},
                          {"rounds", io::Json::integer(result.drafter.rounds())},
                          {"lookup_tau", io::Json::number(result.lookup_tau)},
                          {"forward_tau", io::Json::number(result.written.walked_tau())},
                          {"forward_tau_on_answers",
                           answers ? io::Json::number(result.answers.walked_tau()) : io::Json()},
                          {"compared_rounds", io::Json::integer(result.agreement.rounds)},
                          {"equal_rounds", io::Json::integer(result.agreement.equal)},
                          {"equal_tokens", io::Json::integer(result.greedy.tokens)},
                          {"ties", io::Json::integer(std::ssize(result.greedy.ties))},
                          {"seconds", io::Json::number(progress.trained_s)},
                          {"eval_seconds", io::Json::number(result.seconds)}}));
    std::vector<io::Scalar> points{{"decode/tau", tau},
                                   {"decode/tokens_per_call", result.drafter.tokens_per_call()},
                                   {"decode/lookup_tau", result.lookup_tau},
                                   {"decode/forward_tau", result.written.walked_tau()}};
    const std::vector<double> kept = result.drafter.kept_by_slot();
    for (std::size_t k = 0; k < kept.size(); ++k) {
        points.push_back({fmt::format("decode/kept_slot_{}", k + 1), kept[k]});
    }
    tensorboard_.add(progress.step, wall_time_s(), points);
    decodings_.emplace_back(progress.step, result);
    speed_watch_.pause();
    board_.decoded({.step = progress.step,
                    .tau = tau,
                    .first_tau = first_tau_,
                    .lookup_tau = result.lookup_tau});
    log_info(
        "real decoding at step {}: tau {:.3f}{} (prompt look-up {:.3f}), {:.3f} tokens a pass of "
        "the target; training's forward expects {:.3f} of these texts{}; {} tokens are those of "
        "plain decoding, {} prompts in {}",
        progress.step,
        tau,
        first_tau_ && progress.step > 0 ? fmt::format(", {:.3f} at step 0", *first_tau_) : "",
        result.lookup_tau,
        result.drafter.tokens_per_call(),
        result.written.walked_tau(),
        answers ? fmt::format(", {:.3f} of the data's answers", result.answers.walked_tau()) : "",
        format_count(result.greedy.tokens),
        result.drafter.texts(),
        format_seconds(result.seconds));
    constexpr std::size_t kEnding = 20;  // has no numbers: those of a kind end alike
    const bool answers_tell = result.answers.anchors() >= kFewestAnchors;
    for (const std::string& warning : acceptance_warnings(
             tau,
             result.agreement,
             answers_tell ? std::optional(result.answers.walked_tau()) : std::nullopt)) {
        if (told_.insert(warning.substr(warning.size() - kEnding)).second) {
            log_warning("real decoding at step {}: {}", progress.step, warning);
        }
    }
}

void RunReport::changed(std::int64_t step, const std::vector<std::string>& changes) {
    if (changes.empty()) {
        return;
    }
    std::vector<io::Json> lines;
    for (const std::string& change : changes) {
        lines.push_back(io::Json::string(change));
    }
    metrics_.write(io::Json::object({{"kind", io::Json::string("resume")},
                                     {"step", io::Json::integer(step)},
                                     {"changes", io::Json::array(std::move(lines))}}));
}

void RunReport::saved(const SaveReport& save) {
    point_to_best(std::filesystem::path(save.folder).parent_path().string());
    board_.saved(save.progress.step);
    metrics_.write(io::Json::object({{"kind", io::Json::string("save")},
                                     {"step", io::Json::integer(save.progress.step)},
                                     {"seconds", io::Json::number(save.progress.trained_s)},
                                     {"stall_seconds", io::Json::number(save.stall_s)},
                                     {"write_seconds", io::Json::number(save.cost.write_s)},
                                     {"verify_seconds", io::Json::number(save.cost.verify_s)},
                                     {"bytes", io::Json::integer(save.cost.bytes)},
                                     {"tries", io::Json::integer(save.tries)}}));
    log_info("saved step {} in {}: {}, training stalled {}, written in {}, read back in {}{}",
             save.progress.step,
             save.folder,
             format_bytes(save.cost.bytes),
             format_seconds(save.stall_s),
             format_seconds(save.cost.write_s),
             format_seconds(save.cost.verify_s),
             save.tries > 1 ? fmt::format(", at try {}", save.tries) : "");
    if (hooks_ != nullptr) {
        hooks_->saved(save.progress.step, save.folder);
    }
}

void RunReport::begins_anew() {
    last_step_.reset();
    for (Interval* interval : {&figures_, &line_}) {
        interval->since.reset();
        interval->renewed_at.reset();
        interval->whole = false;
    }
    speed_watch_.pause();
}

void RunReport::set_hooks(RunHooks& hooks) {
    hooks_ = &hooks;
    metrics_.set_listener([&hooks](const std::string& line) { hooks.metrics(line); });
}

void RunReport::summary(const Progress& progress, const std::string& folder) {
    tensorboard_.flush();
    log_info("");
    std::vector<report::ChartPoint> points;
    for (const auto& [step, loss] : loss_curve_) {
        points.push_back({step, loss});
    }
    for (const std::string& line :
         report::draw_chart(points, {.title = "training loss", .x_label = "step"})) {
        log_info("{}", line);
    }
    log_info("");
    if (!evaluations_.empty()) {
        const EvalResult& last = evaluations_.back().second;
        std::string header;
        for (std::size_t k = 1; k <= last.accuracy_by_slot.size(); ++k) {
            header += fmt::format("{:6}", k);
        }
        log_info("held-out accuracy by slot in %{:>7}{}", "slot", header);
        for (const auto& [step, result] : evaluations_) {
            log_info("{:>34}{}   acceptance length {:.3f}",
                     fmt::format("step {}", step),
                     percent_row(result.accuracy_by_slot),
                     result.acceptance_length);
        }
        log_info("{:>34}{}   acceptance length {:.3f}",
                 "bigram table",
                 percent_row(last.bigram_accuracy_by_slot),
                 last.bigram_acceptance_length);
        log_info("");
    }
    if (!decodings_.empty()) {
        std::string header;
        for (std::size_t k = 1; k <= decodings_.back().second.drafter.kept_by_slot().size(); ++k) {
            header += fmt::format("{:6}", k);
        }
        log_info("really decoded: slot kept in % {:>3}{}", "", header);
        for (const auto& [step, result] : decodings_) {
            log_info("{:>34}{}   tau {:.3f}",
                     fmt::format("step {}", step),
                     percent_row(result.drafter.kept_by_slot()),
                     result.drafter.tau());
        }
        log_info("{:>34} tau {:.3f}", "prompt look-up", decodings_.back().second.lookup_tau);
        log_info("");
    }
    log_info("trained {} steps on {} tokens in {}",
             format_count(progress.step),
             format_count(progress.tokens),
             format_seconds(progress.trained_s));
    if (numeric_policy_.skipped() > 0) {
        log_warning("{} of them were skipped: a loss or a gradient was not finite",
                    format_count(numeric_policy_.skipped()));
    }
    if (draft_steps(folder).empty()) {
        log_info("drafter   none yet: the run was ended before its first checkpoint");
        log_info("continue  dflash --resume {}", shell_word(folder));
        return;
    }
    log_info("drafter   {}/latest/draft (config.json, model.safetensors)", folder);
    // An earlier process may have been killed between a save and this.
    point_to_best(folder);
    const std::optional<BestDraft> best = best_draft(folder);
    if (best) {
        log_info("best      {}/best/draft: step {}, held-out acceptance length {:.3f}",
                 folder,
                 best->step,
                 best->acceptance_length);
        std::vector<HeldOutAcceptance> evaluations;
        for (const auto& [step, result] : evaluations_) {
            evaluations.push_back({step, result.acceptance_length});
        }
        if (const auto lost = lost_best(evaluations, {best->step, best->acceptance_length})) {
            log_warning("{}", *lost);
        }
    }
    say_how_to_serve(folder + (best ? "/best/draft" : "/latest/draft"), settings_.run.target);
    log_info("metrics   {}/metrics.jsonl; tensorboard --logdir {}", folder, shell_word(folder));
    log_info("continue  dflash --resume {}", shell_word(folder));
}

}  // namespace dflash::train
