// SPDX-License-Identifier: Apache-2.0
#include <dflash/core/log.hpp>
#include <dflash/train/trainer.hpp>

#include <fmt/format.h>
#include <utility>

namespace dflash::train {
namespace {

/// Part of checkpoint.every after which a step that was evaluated is saved.
constexpr double kEarlyWithEvaluation = 0.9;

}  // namespace

Trainer::Trainer(TrainerParts parts, Progress progress)
    : parts_(std::move(parts)),
      progress_(progress),
      step_(parts_.ranks, parts_.slots, parts_.settings.train.rows_per_step),
      started_at_(std::chrono::steady_clock::now()),
      trained_before_s_(progress.trained_s),
      last_save_s_(progress.trained_s) {
    // A checkpoint that was evaluated is not evaluated once more: each step stands once in
    // metrics.jsonl.
    if (const auto acceptance = parts_.checkpoints.acceptance_of(progress.step)) {
        evaluated_step_ = progress.step;
        last_acceptance_ = *acceptance;
    }
    decoded_step_ = parts_.report.decoded_step();
    parts_.evaluator.budget().decodes = parts_.acceptance != nullptr;
}

Progress Trainer::run() {
    const auto training = parts_.report.board().enter(report::RunState::Training);
    if (progress_.step == 0) {
        evaluate();
        decode_prompts(/*whatever_it_costs=*/true);
    }
    started_at_ = std::chrono::steady_clock::now();  // --hours are hours of training
    progress_.trained_s = trained_before_s_;
    parts_.pipeline.start();

    bool data_left = true;
    while (data_left && !parts_.length.finished(progress_) && !parts_.signals.stop_requested()) {
        data_left = fill_step();
        if (step_.empty() || wants_rows_) {
            break;
        }
        finish_step();
        report_steps(kMaxStepsAhead);

        if (parts_.evaluator.due(progress_)) {
            evaluate();
        }
        if (save_due()) {
            save();
        }
        report_saves();
    }
    report_steps(0);
    stop_pipeline();
    if (!parts_.signals.stop_requested() && !wants_rows_) {
        evaluate();
        decode_prompts(/*whatever_it_costs=*/true);
    }
    save_last();
    return progress_;
}

void Trainer::save_last() {
    const Activity::Scope activity(
        parts_.loop, "wait for saves", Activity::kNoNumber, Activity::Kind::Waits);
    const auto saving = parts_.report.board().enter(report::RunState::Saving);
    parts_.writer.wait_until_ready();
    save();
    parts_.writer.finish(
        std::chrono::duration<double>(parts_.settings.checkpoint.patience.seconds));
    report_saves();
}

void Trainer::stop_pipeline() {
    const Activity::Scope activity(
        parts_.loop, "stop the pipeline", Activity::kNoNumber, Activity::Kind::Waits);
    parts_.pipeline.stop();
}

bool Trainer::fill_step() {
    const Progress before = progress_;
    while (!step_.full()) {
        std::optional<pipeline::RowLease> row = next_row();
        if (!row) {
            // END: the data is used up, which is no error; or only what there is of it so far.
            if (parts_.data_goes_on && !parts_.signals.stop_requested()) {
                progress_ = before;
                wants_rows_ = true;
            }
            return false;
        }
        progress_.consume(*row->row());
        if (parts_.on_row) {
            parts_.on_row(*row->row());
        }
        if (parts_.gate.due(progress_.step, progress_.trained_s)) {
            check_features(*row);
        }
        step_.add(std::move(*row));
    }
    return true;
}

std::optional<pipeline::RowLease> Trainer::next_row() {
    const Activity::Scope activity(
        parts_.loop, "wait for a row of step", progress_.step + 1, Activity::Kind::Waits);
    return parts_.pipeline.next();
}

void Trainer::check_features(const pipeline::RowLease& lease) {
    const data::PackedRow& row = *lease.row();
    if (row.empty()) {
        return;
    }
    const Activity::Scope activity(
        parts_.loop, "check features of row", row.index, Activity::Kind::Waits);
    const auto slot = static_cast<std::size_t>(lease.slot());
    parts_.gate.check(row,
                      parts_.slots[slot],
                      *parts_.ranks[slot % parts_.ranks.size()],
                      progress_.step,
                      progress_.trained_s);
}

void Trainer::finish_step() {
    ++progress_.step;
    progress_.trained_s = trained_before_s_ + elapsed_s();
    const double learning_rate =
        train::learning_rate(parts_.settings.train, parts_.length.fraction_done(progress_));
    in_flight_.push_back({progress_, learning_rate, step_.finish(progress_.step, learning_rate)});
}

void Trainer::report_steps(std::size_t leave_in_flight) {
    while (in_flight_.size() > leave_in_flight) {
        StepInFlight& step = in_flight_.front();
        const std::int64_t number = step.progress.step;
        const StepReport report = [&] {
            const Activity::Scope activity(
                parts_.loop, "wait for step", number, Activity::Kind::Waits);
            return step.pending.wait();
        }();
        const Activity::Scope activity(parts_.loop, "report step", number);
        parts_.report.step(step.progress,
                           report,
                           step.learning_rate,
                           parts_.pipeline.stats(),
                           parts_.length.fraction_done(step.progress));
        in_flight_.pop_front();
    }
}

void Trainer::evaluate() {
    if (parts_.evaluator.empty() || evaluated_step_ == progress_.step) {
        return;
    }
    report_steps(0);
    const Activity::Scope activity(
        parts_.loop, "evaluate step", progress_.step, Activity::Kind::Waits);
    const auto evaluating = parts_.report.board().enter(report::RunState::Evaluating);
    const std::optional<EvalResult> result = parts_.evaluator.run(progress_, parts_.signals);
    progress_.trained_s = trained_before_s_ + elapsed_s();
    if (!result) {
        log_info("the evaluation at step {} is left out: a stop was asked for", progress_.step);
        return;
    }
    evaluated_step_ = progress_.step;
    last_acceptance_ = result->acceptance_length;
    parts_.report.evaluation(progress_, *result);
    decode_prompts(/*whatever_it_costs=*/false);
}

void Trainer::decode_prompts(bool whatever_it_costs) {
    if (parts_.acceptance == nullptr || decoded_step_ == progress_.step ||
        (!whatever_it_costs && !parts_.evaluator.budget().allows_decoding(
                                   progress_.trained_s, parts_.acceptance->cost_s()))) {
        return;
    }
    report_steps(0);
    const Activity::Scope activity(
        parts_.loop, "decode prompts at step", progress_.step, Activity::Kind::Waits);
    const auto evaluating = parts_.report.board().enter(report::RunState::Evaluating);
    const std::optional<AcceptanceResult> result = parts_.acceptance->run(parts_.signals);
    progress_.trained_s = trained_before_s_ + elapsed_s();
    if (!result) {
        log_info("real decoding at step {} is left out: a stop was asked for", progress_.step);
        return;
    }
    decoded_step_ = progress_.step;
    if (!whatever_it_costs) {
        parts_.evaluator.budget().decoded_s += result->seconds;
    }
    parts_.report.acceptance(progress_, *result);
}

bool Trainer::save_due() {
    const bool asked = parts_.signals.save_now.load();
    // A little early with an evaluation, so that the draft has its acceptance, by which retention
    // chooses: with equal intervals the two would drift apart by the time that evaluations take.
    const double part = evaluated_step_ == progress_.step ? kEarlyWithEvaluation : 1;
    const double every_s = part * parts_.settings.checkpoint.every.seconds;
    if (!asked && progress_.trained_s - last_save_s_ < every_s) {
        return false;
    }
    if (parts_.writer.ready()) {
        return true;
    }
    // It comes with the first step after the one before it is written.
    if (!std::exchange(save_waits_, true)) {
        log_info("the save due at step {} waits: the one before it is still being written",
                 progress_.step);
    }
    return false;
}

void Trainer::save() {
    parts_.signals.save_now = false;
    save_waits_ = false;
    report_steps(0);
    const Activity::Scope activity(parts_.loop, "save step", progress_.step);
    const auto saving = parts_.report.board().enter(report::RunState::Saving);
    DrafterRank& first = *parts_.ranks.front();
    Checkpoint checkpoint;
    checkpoint.progress = progress_;
    checkpoint.identity = parts_.identity;
    checkpoint.products = parts_.products;
    checkpoint.config = first.drafter().config();
    OptimizerState& buffers = parts_.writer.begin(
        checkpoint,
        evaluated_step_ == progress_.step ? std::optional(last_acceptance_) : std::nullopt);
    // Drafters wait for nothing else here: the steps before are done, the next not begun.
    const auto start = std::chrono::steady_clock::now();
    first.worker().call({"copy the optimizer"}, [&] { first.snapshot(buffers); });
    parts_.writer.write(
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    last_save_s_ = progress_.trained_s;
    being_written_ = parts_.report.board().beside(fmt::format("saving step {}", progress_.step));
}

void Trainer::report_saves() {
    for (const SaveReport& report : parts_.writer.take_reports()) {
        being_written_.end();
        parts_.report.saved(report);
    }
}

double Trainer::elapsed_s() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - started_at_).count();
}

}  // namespace dflash::train
