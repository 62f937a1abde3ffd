// SPDX-License-Identifier: Apache-2.0
#include <dflash/core/error.hpp>
#include <dflash/core/log.hpp>
#include <dflash/core/random.hpp>
#include <dflash/core/text.hpp>
#include <dflash/io/safetensors.hpp>
#include <dflash/target/target_model.hpp>
#include <dflash/train/acceptance_evaluator.hpp>
#include <dflash/train/held_out_prompts.hpp>
#include <dflash/train/prepared_run.hpp>
#include <dflash/train/run_answers.hpp>
#include <dflash/train/run_data.hpp>
#include <dflash/train/run_kernels.hpp>

#include <algorithm>
#include <chrono>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <span>
#include <unordered_set>

namespace dflash::train {
namespace {

/// Where the data stand in the run: as they were, or with rows that enter at the next epoch.
void settle_history(const Settings& settings,
                    const std::optional<SavedData>& saved,
                    PreparedRun& run) {
    if (!saved) {
        run.history = data::DataHistory(run.training->state());
        return;
    }
    run.history = saved->history;
    const data::DataComparison now = run.training->compare_with(saved->history.last());
    if (now.change == data::DataChange::None) {
        if (saved->extend) {
            log_info("data      is what it was: --extend-data has nothing to add");
        }
        return;
    }
    const std::string folder = shell_word(saved->run_folder);
    const bool begun = saved->cursor != data::Cursor{};
    const std::string new_run =
        begun ? fmt::format(
                    "start a new run from its weights: dflash --config {0}/config.toml "
                    "--init {0}/latest/draft",
                    folder)
              : "start a new run";
    if (now.change == data::DataChange::Other) {
        throw Error(ErrorKind::Config,
                    {.what = fmt::format("the data are not those {}: {}",
                                         begun ? "of the checkpoint" : "that the run began with",
                                         now.difference),
                     .where = settings.run.data,
                     .cause = {},
                     .hint = fmt::format("Resume with the data as they were (--extend-data takes "
                                         "rows that were added at the end of the last file, or in "
                                         "further files), or {}",
                                         new_run)});
    }
    if (!saved->extend) {
        throw Error(ErrorKind::Config,
                    {.what = fmt::format("the data grew since {}: {} ({} new row{})",
                                         begun ? "the checkpoint" : "the run began",
                                         now.difference,
                                         format_count(now.new_rows),
                                         now.new_rows == 1 ? "" : "s"),
                     .where = settings.run.data,
                     .cause = {},
                     .hint = fmt::format("Take the new rows from the next epoch on with dflash "
                                         "--resume {} --extend-data, or {}",
                                         folder,
                                         new_run)});
    }
    data::DataState state = run.training->state();
    const bool epoch_begun = saved->cursor.window > 0 || saved->cursor.row_in_window > 0;
    state.first_epoch = saved->cursor.epoch + (epoch_begun ? 1 : 0);
    const bool by_epochs = !settings.train.hours && !settings.train.tokens;
    if (by_epochs && state.first_epoch >= settings.train.epochs && now.new_rows > 0) {
        throw Error(ErrorKind::Config,
                    {.what = fmt::format("no epoch is left that would use the {} new rows: they "
                                         "enter at epoch {}, and train.epochs is {}",
                                         format_count(now.new_rows),
                                         state.first_epoch + 1,
                                         settings.train.epochs),
                     .where = settings.run.data,
                     .cause = {},
                     .hint = fmt::format("Make the run longer as well: dflash --resume {} "
                                         "--extend-data --epochs {}",
                                         folder,
                                         state.first_epoch + settings.train.epochs)});
    }
    run.growth = fmt::format("{}; {} new row{} from epoch {} on",
                             now.difference,
                             format_count(now.new_rows),
                             now.new_rows == 1 ? "" : "s",
                             state.first_epoch + 1);
    run.history->extend(std::move(state));
}

/// Ids below `num_rows`, of a rising list.
std::vector<SampleId> ids_below(const std::vector<SampleId>& ids, std::int64_t num_rows) {
    return {ids.begin(), std::ranges::lower_bound(ids, num_rows)};
}

/// Held out are samples of the rows that the run began with; so none that was trained on is ever
/// held out later, or the other way round.
void split_held_out(const Settings& settings, PreparedRun& run) {
    run.train_ids = run.training->usable();
    const std::vector<SampleId> first = ids_below(run.train_ids, run.history->first().num_rows);
    if (run.evaluation) {
        run.held_out_ids = run.evaluation->usable();
        return;
    }
    const std::int64_t num_samples = std::ssize(first);
    const std::int64_t count = num_held_out(settings.eval.fraction, num_samples);
    RandomStream stream(
        static_cast<std::uint64_t>(settings.run.seed), Purpose::Holdout, /*epoch=*/0, /*id=*/0);
    const std::vector<std::uint64_t> places = stream.sample_sorted(
        static_cast<std::uint64_t>(num_samples), static_cast<std::uint64_t>(count));
    for (const std::uint64_t place : places) {
        run.held_out_ids.push_back(first[place]);
    }
    const std::unordered_set<SampleId> held_out(run.held_out_ids.begin(), run.held_out_ids.end());
    std::erase_if(run.train_ids, [&](SampleId id) { return held_out.contains(id); });
    if (count == num_samples) {
        throw Error(ErrorKind::Data,
                    {.what = fmt::format("all {} usable samples are held out", num_samples),
                     .where = settings.run.data,
                     .cause = {},
                     .hint = "Give more data, or --eval-data, or set eval.fraction = 0"});
    }
}

/// Chooses the prompts that evaluations decode, and says what that needs; without any, why.
void choose_acceptance_prompts(const Settings& settings, PreparedRun& run, PlanInput& plan) {
    const std::int64_t count = training_prompts(settings.eval);
    if (count == 0 || run.held_out_ids.empty()) {
        return;
    }
    const std::int64_t answer = training_answer_tokens(settings.eval);
    const std::int64_t target_context = run.target.max_position_embeddings;
    const std::int64_t draft_context = run.draft.config.max_position_embeddings;
    if (settings.eval.acceptance_tokens) {  // the length by rule turns it off instead
        longest_prompt(answer, target_context, draft_context);
    }
    run.acceptance_prompts =
        held_out_prompts(run.held_out_data(),
                         run.held_out_ids,
                         {.count = count,
                          .seed = static_cast<std::uint64_t>(settings.run.seed),
                          .longest = std::min(target_context, draft_context) - answer});
    const std::vector<EvalPrompt>& prompts = run.acceptance_prompts.prompts;
    // Rows that are still to be answered have a prompt, too; with their answers they are chosen.
    const bool may_come = run.answers && !run.evaluation;
    const std::int64_t to_come =
        may_come
            ? std::min(
                  count - std::ssize(prompts),
                  static_cast<std::int64_t>(std::ranges::count_if(
                      run.held_out_ids, [&](SampleId id) { return run.answers->pending(id); })))
            : 0;
    if (prompts.empty() && to_come == 0) {
        plan.acceptance_off = "no held-out row has a prompt";
        for (const auto& [reason, group] : run.acceptance_prompts.left_out) {
            plan.acceptance_off +=
                fmt::format("; {} of them: {}", format_count(group.count), reason);
        }
        return;
    }
    std::int64_t longest = 0;
    std::int64_t sum = 0;
    for (const EvalPrompt& prompt : prompts) {
        longest = std::max(longest, std::ssize(prompt.tokens));
        sum += std::ssize(prompt.tokens);
    }
    if (to_come > 0) {
        longest = std::max(longest, run.answers->longest_prompt());
        sum += to_come * run.answers->longest_prompt();
    }
    const std::int64_t num_prompts = std::ssize(prompts) + to_come;
    plan.acceptance =
        AcceptanceNeed{.prompts = num_prompts,
                       .answer_tokens = answer,
                       .slots = std::min(settings.eval.batch, num_prompts),
                       .capacity = longest + answer,
                       .pass_tokens = std::min(sum, std::max(longest, eval::kMostPromptTokens))};
}

/// A line now and then while many rows are judged.
class JudgingLog {
  public:
    void operator()(std::int64_t done, std::int64_t total) {
        const auto now = std::chrono::steady_clock::now();
        if (now - last_ > std::chrono::seconds(10)) {
            last_ = now;
            log_info("data      {} of {} rows judged", format_count(done), format_count(total));
        }
    }

  private:
    std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
};

void check_mixture(const Settings& settings, const PreparedRun& run) {
    if (run.mixture.num_samples(run.first_train_ids()) == 0) {
        throw Error(ErrorKind::Config,
                    {.what = fmt::format("with the weights {} an epoch has no sample",
                                         run.mixture.to_text()),
                     .where = settings.run.data,
                     .cause = {},
                     .hint = "Raise a weight"});
    }
}

// Without reading all of them: names, shapes, dtypes and 64 bytes of every tensor.
std::uint64_t weights_fingerprint(const std::string& folder) {
    const io::SafetensorsFolder weights(folder);
    std::string text;
    for (const std::string& name : weights.names()) {
        const io::TensorView& view = *weights.find(name);
        text += describe(view);
        text += name;
        const std::size_t middle = view.data.size() / 2;
        for (const std::byte byte :
             view.data.subspan(middle, std::min<std::size_t>(64, view.data.size() - middle))) {
            text += static_cast<char>(byte);
        }
    }
    return stable_hash(text.data(), text.size());
}

}  // namespace

std::string target_fingerprint(const target::TargetConfig& target, const std::string& folder) {
    return fmt::format("{} {:016x}", target.architecture, weights_fingerprint(folder));
}

EpochSizes epoch_sizes_of(const std::vector<SampleId>& train_ids,
                          std::span<const data::DataState> states,
                          const data::Mixture& mixture) {
    const auto count = [&](const data::DataState& state) {
        return mixture.num_samples(ids_below(train_ids, state.num_rows));
    };
    EpochSizes sizes(count(states.front()));
    for (const data::DataState& state : states.subspan(1)) {
        sizes.grow(state.first_epoch, count(state));
    }
    return sizes;
}

std::vector<SampleId> PreparedRun::first_train_ids() const {
    return ids_below(train_ids, history->first().num_rows);
}

// The data with whatever answers there are, or are to come, for rows that a model answers.
void open_training_data(const Settings& settings,
                        const RunText& text,
                        data::DatasetOptions options,
                        const std::string& run_folder,
                        PreparedRun& run) {
    options.refuse_bad_data = false;
    options.answers = run.answers;
    run.training = std::make_unique<data::Dataset>(open_data(settings.run.data, text, options));
    if (!run.answers && RunAnswers::are_wanted(settings, run.training->report())) {
        run.answers = std::make_shared<RunAnswers>(settings, text);
        if (!run_folder.empty()) {
            run.answers->take_from(run_folder);
        }
        options.answers = run.answers;
        run.training = std::make_unique<data::Dataset>(open_data(settings.run.data, text, options));
    }
}

PreparedRun prepare_run(const Settings& settings,
                        const std::optional<SavedData>& saved,
                        std::shared_ptr<RunAnswers> answers,
                        const std::string& run_folder) {
    PreparedRun run;
    run.answers = std::move(answers);
    RunText text = open_text(settings);
    target::judge_target(text.location.folder);
    run.devices = gpu::parse_devices(settings.run.gpus);

    std::optional<DraftChoice> init;
    if (!settings.run.init.empty()) {
        const std::string folder = target::find_target(settings.run.init).folder;
        run.init = load_draft(folder);
        init = DraftChoice{run.init->config, folder};
    }
    run.draft = choose_drafter(
        settings.draft, init, text.target, text.location, *text.tokenizer, *text.format);

    if (std::ranges::any_of(run.devices, &gpu::Device::is_cuda)) {
        kernels::check_shape(kernel_shape(text.target));
        kernels::check_shape(kernel_shape(run.draft.config));
    }

    data::DatasetOptions options = dataset_options(settings);
    options.block_size = run.draft.config.block_size;
    options.on_progress = JudgingLog();
    open_training_data(settings, text, options, run_folder, run);
    if (!settings.run.eval_data.empty()) {
        options.target_answers = false;
        run.evaluation =
            std::make_unique<data::Dataset>(open_data(settings.run.eval_data, text, options));
    }
    run.location = std::move(text.location);
    run.target = std::move(text.target);
    run.tokenizer = std::move(text.tokenizer);
    run.format = std::move(text.format);
    run.format_origin = std::move(text.format_origin);
    // Rows that must not be there at all are named before what is wrong with them.
    settle_history(settings, saved, run);
    if (const std::optional<Error> problem = run.training->problem()) {
        throw *problem;
    }
    split_held_out(settings, run);
    const std::span states(run.history->states());
    run.mixture = run.training->mixture();
    check_mixture(settings, run);
    run.epoch_ids = epoch_sizes_of(run.train_ids, states, {});
    run.epoch_sizes = epoch_sizes_of(run.train_ids, states, run.mixture);
    run.sizes_before = epoch_sizes_of(
        run.train_ids, states.first(states.size() - (run.growth.empty() ? 0 : 1)), run.mixture);

    run.pack.window = settings.data.window;
    run.pack.row_tokens = settings.data.row_tokens;
    run.pack.row_anchors = settings.data.row_anchors;
    run.pack.seed = static_cast<std::uint64_t>(settings.run.seed);
    run.pack.block.block_size = static_cast<std::int32_t>(run.draft.config.block_size);
    run.pack.block.max_anchors = settings.draft.anchors;
    run.pack.block.loss_decay_gamma = settings.train.loss_weights == "uniform"
                                          ? 0
                                          : settings.train.loss_decay_gamma.value_or(
                                                data::default_gamma(run.draft.config.block_size));
    run.loss_weights = loss_weights_of(settings.train);
    run.head_precision = model::head_precision(settings.draft.head_precision);

    const data::DataReport expected =
        run.answers ? run.answers->expected(run.training->report()) : run.training->report();
    PlanInput plan{.settings = settings,
                   .target = run.target,
                   .draft = run.draft.config,
                   .data = expected,
                   .num_train_samples = run.mixture.num_samples(run.train_ids),
                   .devices = run.devices,
                   .memory = gpu::memory_of};
    choose_acceptance_prompts(settings, run, plan);
    run.plan = make_plan(plan);
    return run;
}

model::LossWeights loss_weights_of(const TrainSettings& settings) {
    using model::SlotWeighting;
    model::LossWeights weights;
    weights.alpha = settings.dpace_alpha.value_or(weights.alpha);
    if (settings.uses_dpace()) {
        weights.kind = settings.loss_weights == "dpace"          ? SlotWeighting::Dpace
                       : settings.loss_weights == "dpace-prefix" ? SlotWeighting::DpacePrefix
                                                                 : SlotWeighting::DpaceSuffix;
    }
    return weights;
}

Identity identity_of(Settings& settings, const PreparedRun& run) {
    Identity identity;
    const SettingList list = settings.list();
    for (const Setting& setting : list.all()) {
        if (setting.check.maths) {
            identity[setting.name] = to_toml(setting.value());
        }
    }
    identity["drafter"] = run.draft.config.to_json().dump();
    identity["target"] = target_fingerprint(run.target, run.location.folder);
    if (run.answers) {
        identity["answers"] = run.answers->identity_text();
    }
    identity[kDataIdentity] = run.history->to_text();
    if (run.evaluation) {
        identity["eval_data"] = data::DataHistory(run.evaluation->state()).to_text();
    }
    if (!run.mixture.is_plain()) {
        identity["data_weights"] = run.mixture.to_text();
    }
    identity["chat_format"] = std::string(run.format->name());
    return identity;
}

void print_data(const PreparedRun& run) {
    const data::DataReport& data = run.training->report();
    log_info(
        "data      {} of {} samples are usable{}: {} tokens, {} of them trained, in {} format (by "
        "{}); "
        "{} to train on, {} held out",
        format_count(data.usable),
        format_count(data.lines),
        data.pending > 0 ? fmt::format(", {} are to be answered", format_count(data.pending)) : "",
        format_count(data.tokens),
        format_count(data.trainable_tokens),
        run.format->name(),
        run.format_origin,
        format_count(static_cast<std::int64_t>(run.train_ids.size())),
        format_count(static_cast<std::int64_t>(run.held_out_ids.size())));
    for (const auto& [kind, group] : data.refused) {
        log_warning("{} samples refused ({}): {}", format_count(group.rows), kind, group.message);
    }
    for (const auto& [reason, count] : data.dropped_answers) {
        log_warning("{} answers of the target cannot be used: {}", format_count(count), reason);
    }
    if (data.cut.rows > 0) {
        log_info("data      {} samples are longer than data.max_length and are cut at the end",
                 format_count(data.cut.rows));
    }
    for (const data::DataWarning& warning : data.warnings()) {
        log_warning("{}. {}", warning.what, warning.hint);
    }
}

void print_header(const PreparedRun& run, const std::vector<std::string>& changed_settings) {
    const model::DraftConfig& draft = run.draft.config;
    log_info("target    {}{} ({}, {} layers, hidden size {}) from {}",
             run.location.name,
             run.location.revision.empty() ? "" : " revision " + run.location.revision,
             run.target.architecture,
             run.target.num_layers,
             run.target.hidden_size,
             run.location.folder);
    log_info(
        "drafter   {} layers, {}/{} heads of {}, block size {}, target layers [{}], mask token {}: "
        "{}",
        draft.num_layers(),
        draft.num_heads,
        draft.num_kv_heads,
        draft.head_dim,
        draft.block_size,
        fmt::join(draft.target_layer_ids, ", "),
        draft.mask_token_id,
        run.draft.origin);
    print_data(run);
    if (run.answers) {
        for (const std::string& line : run.answers->plan_lines(run.devices)) {
            log_info("{}", line);
        }
    }
    for (const gpu::Device& device : run.devices) {
        log_info("device    {}: {}", device.name, gpu::describe(device));
    }
    for (const std::string& line : run.plan.to_lines()) {
        log_info("{}", line);
    }
    for (const std::string& line : changed_settings) {
        log_info("setting   {}", line);
    }
}

}  // namespace dflash::train
