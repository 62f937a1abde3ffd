// SPDX-License-Identifier: Apache-2.0
// A run from its settings to its summary. Answering rows and training on them take turns; each turn
// begins where the checkpoint of the one before stands, as a resume does.
#include "training_session.hpp"

#include <dflash/core/error.hpp>
#include <dflash/core/log.hpp>
#include <dflash/core/text.hpp>
#include <dflash/io/folder_lock.hpp>
#include <dflash/io/page_warmer.hpp>
#include <dflash/report/console.hpp>
#include <dflash/tensor/failure.hpp>
#include <dflash/train/answer_check.hpp>
#include <dflash/train/answer_schedule.hpp>
#include <dflash/train/fault_plan.hpp>
#include <dflash/train/gpu_check.hpp>
#include <dflash/train/resume.hpp>
#include <dflash/train/run_answers.hpp>
#include <dflash/train/run_folder.hpp>
#include <dflash/train/run_hooks.hpp>
#include <dflash/train/run_search.hpp>
#include <dflash/train/version.hpp>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fmt/format.h>
#include <utility>

namespace dflash::train {
namespace {

CheckpointStore checkpoints_of(const TrainRequest& request) {
    return {request.resume_folder,
            request.settings.checkpoint.keep,
            request.settings.checkpoint.keep_drafts};
}

std::vector<std::string> weight_files(const std::string& folder) {
    std::vector<std::string> files;
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
        if (entry.path().extension() == ".safetensors") {
            files.push_back(entry.path().string());
        }
    }
    std::sort(files.begin(), files.end());
    return files;
}

PreparedRun prepare(const Settings& settings,
                    const std::optional<SavedData>& saved,
                    std::shared_ptr<RunAnswers> answers,
                    const std::string& run_folder = {}) {
    // The weights are read from the disk while the rows are judged.
    const io::PageWarmer warmer(weight_files(target::find_target(settings.run.target).folder));
    return prepare_run(settings, saved, std::move(answers), run_folder);
}

/// A run that was ended before its first checkpoint has answers at most: it begins anew with them.
bool has_only_answers(const TrainRequest& request) {
    return !request.resume_folder.empty() && !request.resume_step &&
           checkpoints_of(request).steps().empty() && RunAnswers::are_in(request.resume_folder);
}

/// The turns of a run.
class Turns {
  public:
    Turns(const TrainRequest& request, const SessionParts& parts, const data::Dataset*& data)
        : request_(request), parts_(parts), data_(data) {}

    /// Trains to the end of the run, or until a stop is asked for.
    Progress run(PreparedRun run, std::optional<Checkpoint> checkpoint);

  private:
    bool answer(const PreparedRun& run, const AnswerStage& stage);
    void prepare_again(PreparedRun& run);

    const TrainRequest& request_;
    SessionParts parts_;
    std::optional<SavedData> saved_;
    const data::Dataset*& data_;
};

Progress Turns::run(PreparedRun run, std::optional<Checkpoint> checkpoint) {
    // Later turns work on the data as they are now.
    saved_ = SavedData{.history = *run.history,
                       .cursor = checkpoint ? checkpoint->progress.cursor : data::Cursor{},
                       .extend = false,
                       .run_folder = parts_.folder};
    // What is in the cache needs no turn.
    bool data_changed = run.answers && run.answers->take_cached() > 0;
    bool begins = !checkpoint;
    while (true) {
        const Progress at = checkpoint ? checkpoint->progress : Progress{};
        const AnswerStage stage = next_stage(run, request_.settings, at.cursor);
        if (!stage.rows.empty()) {
            if (!answer(run, stage)) {
                return at;
            }
            data_changed = true;
        }
        if (std::exchange(data_changed, false)) {
            prepare_again(run);
        }
        if (std::exchange(begins, false)) {
            check_answers(run,
                          request_.settings,
                          parts_.whereabouts,
                          parts_.watchdog,
                          parts_.board,
                          parts_.signals);
        }
        data_ = run.training.get();
        const std::shared_ptr<RunAnswers> answers = run.answers;
        const SessionResult result =
            run_session(std::move(run), request_, parts_, std::move(checkpoint), stage.end);
        data_ = nullptr;
        if (!result.wants_rows || parts_.signals.stop_requested()) {
            return result.progress;
        }
        parts_.whereabouts.forget_parts();
        parts_.report.begins_anew();
        checkpoint.reset();
        if (result.progress.step > 0) {
            const CheckpointStore store(parts_.folder,
                                        request_.settings.checkpoint.keep,
                                        request_.settings.checkpoint.keep_drafts);
            checkpoint = store.load(result.progress.step);
            saved_ = saved_data(*checkpoint, /*extend=*/false, parts_.folder);
        }
        run = prepare(request_.settings, saved_, answers);
    }
}

/// False if a stop was asked for.
bool Turns::answer(const PreparedRun& run, const AnswerStage& stage) {
    const bool all = run.answers->answer(stage.rows,
                                         {.devices = run.devices,
                                          .whereabouts = parts_.whereabouts,
                                          .watchdog = parts_.watchdog,
                                          .board = parts_.board,
                                          .signals = parts_.signals});
    parts_.whereabouts.forget_parts();
    return all;
}

/// With what the answers are: lengths, what is dropped, the plan.
void Turns::prepare_again(PreparedRun& run) {
    run = prepare(request_.settings, saved_, run.answers);
    write_data_report(parts_.folder, run.training->report());
    print_data(run);
}

}  // namespace

std::string resume_config_path(const std::string& run_folder) {
    const std::string path = (std::filesystem::path(run_folder) / "config.toml").string();
    if (!std::filesystem::exists(path)) {
        throw Error(ErrorKind::Config,
                    {.what = "this is no run folder: it has no config.toml",
                     .where = run_folder,
                     .cause = {},
                     .hint = "Give --resume a folder that a run has written"});
    }
    return path;
}

void print_plan(const TrainRequest& request) {
    std::optional<SavedData> saved;
    if (!request.resume_folder.empty() && !has_only_answers(request)) {
        saved = saved_data(checkpoints_of(request).load(request.resume_step),
                           request.extend_data,
                           request.resume_folder);
    }
    print_header(prepare_run(request.settings, saved, {}, request.resume_folder),
                 request.changed_settings);
}

int train(TrainRequest request, StopSignals& signals) {
    set_faults_from_environment();
    Whereabouts whereabouts;
    Watchdog watchdog(whereabouts, {.after_s = request.settings.watchdog.after.seconds});
    const Activity::Scope activity(whereabouts.loop(), "prepare");
    for (const std::string& file : request.config_files) {
        log_info("settings  {}", file);
    }
    check_gpus(gpu::parse_devices(request.settings.run.gpus));
    const bool resuming = !request.resume_folder.empty();
    // One process at a time writes a run folder.
    std::optional<io::FolderLock> lock;
    std::optional<Checkpoint> checkpoint;
    std::optional<SavedData> saved;
    const bool from_start = !resuming || has_only_answers(request);
    if (resuming) {
        lock.emplace(request.resume_folder);
    }
    if (!from_start) {
        checkpoint = checkpoints_of(request).load(request.resume_step);
        saved = saved_data(*checkpoint, request.extend_data, request.resume_folder);
    }
    PreparedRun run = prepare(request.settings, saved, {}, request.resume_folder);
    print_header(run, request.changed_settings);

    const std::string folder =
        resuming ? request.resume_folder : new_run_folder(request.settings.run, run.location.name);
    RunStart start{.command_line = request.command_line, .step = 0, .changes = {}};
    if (!from_start) {
        const Progress& progress = checkpoint->progress;
        start.step = progress.step;
        start.changes = describe_changes(
            changes_on_resume(checkpoint->identity, identity_of(request.settings, run), folder),
            run,
            request.settings,
            progress);
        checkpoints_of(request).remove_leftovers();
        checkpoints_of(request).set_aside_after(progress.step);
        point_to_best(folder);
    } else if (!resuming) {
        name_unfinished_runs(identity_of(request.settings, run), run, request.settings, folder);
    }
    check_free_disk(run.plan, folder);
    create_run_folder(folder);
    if (!lock) {
        lock.emplace(folder);
    }
    report::Console& console = report::console();
    console.attach(folder + "/console.log");
    request.settings.run.output.clear();  // so that another run can read these settings
    describe_run(folder, request.settings, run, start);
    if (run.answers) {
        run.answers->keep_in(folder);
    }
    log_info(
        "run       {}{}", folder, resuming ? fmt::format(", resumed at step {}", start.step) : "");
    for (const std::string& line : start.changes) {
        log_info("changed   {}", line);
    }
    if (!from_start) {
        if (const auto done = nothing_left(run, request.settings, checkpoint->progress, folder)) {
            log_warning("{}", *done);
        }
    }

    RunHooks hooks(request.settings.hooks, folder);
    const data::Dataset* data = nullptr;  // of the turn that trains
    NumericPolicy numeric_policy(
        folder,
        [&data](SampleId id) { return data->place_of(id); },
        checkpoint ? checkpoint->progress.step - checkpoint->optimizer.steps : 0);
    StatusBoard board(console,
                      {.folder = folder,
                       .version = std::string(kVersion),
                       .every_s = request.settings.report.every.seconds,
                       .stop_requested = [&signals] { return signals.stop_requested(); }});
    try {
        RunReport report(folder, start.step, request.settings, std::move(numeric_policy), board);
        report.set_hooks(hooks);
        report.changed(start.step, start.changes);
        const std::shared_ptr<const RunAnswers> answers = run.answers;
        Turns turns(request,
                    {.folder = folder,
                     .report = report,
                     .signals = signals,
                     .whereabouts = whereabouts,
                     .watchdog = watchdog,
                     .board = board},
                    data);
        const Progress progress = turns.run(std::move(run), std::move(checkpoint));
        whereabouts.loop().set("end", Activity::kNoNumber, Activity::Kind::Waits);
        const int signal = signals.stop_signal.load();
        const int code = signal == 0 ? 0 : signal == SIGINT ? 130 : 143;
        board.finished(code == 0 ? report::RunState::Done : report::RunState::Stopped, code);
        report.summary(progress, folder);
        if (answers) {
            for (const std::string& line : answers->summary_lines()) {
                log_info("{}", line);
            }
        }
        hooks.finish();
        return code;
    } catch (...) {
        const std::exception_ptr failure = tensor::as_failure(std::current_exception());
        board.failed(failure);
        std::rethrow_exception(failure);
    }
}

}  // namespace dflash::train
