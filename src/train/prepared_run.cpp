// SPDX-License-Identifier: Apache-2.0
#include <dflash/core/error.hpp>
#include <dflash/core/log.hpp>
#include <dflash/core/random.hpp>
#include <dflash/core/text.hpp>
#include <dflash/data/data_list.hpp>
#include <dflash/io/safetensors.hpp>
#include <dflash/target/target_model.hpp>
#include <dflash/train/prepared_run.hpp>

#include <algorithm>
#include <filesystem>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <span>
#include <thread>
#include <unordered_set>

namespace dflash::train {
namespace {

std::vector<std::string> data_files(const std::string& setting) {
    std::vector<std::string> files;
    for (data::DataFile& file : data::parse_data_list(setting)) {
        files.push_back(std::move(file.path));
    }
    if (files.empty()) {
        throw Error(ErrorKind::Config,
                    {.what = "no training data",
                     .where = {},
                     .cause = {},
                     .hint = "Name a JSON-lines file with --data prompts.jsonl"});
    }
    return files;
}

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
    const std::string new_run = fmt::format(
        "start a new run from its weights: dflash --config {0}/config.toml --init {0}/latest/draft",
        folder);
    if (now.change == data::DataChange::Other) {
        throw Error(ErrorKind::Config,
                    {.what = "the data are not those of the checkpoint: " + now.difference,
                     .where = settings.run.data,
                     .cause = {},
                     .hint = fmt::format("Resume with the data as they were (--extend-data takes "
                                         "rows that were added at the end of the last file, or in "
                                         "further files), or {}",
                                         new_run)});
    }
    if (!saved->extend) {
        throw Error(ErrorKind::Config,
                    {.what = fmt::format("the data grew since the checkpoint: {} ({} new row{})",
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

// Identity of the weights without reading all of them: names, shapes, dtypes and 64 bytes of every
// tensor.
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

// A tokenizer of another model writes tokens that the embedding has no row for.
void check_tokenizer_fits(const PreparedRun& run) {
    if (run.tokenizer->num_ids() > run.target.vocab_size) {
        throw Error(ErrorKind::Config,
                    {.what = fmt::format("the tokenizer has ids up to {}, expected less than {}, "
                                         "the vocab_size of the target",
                                         run.tokenizer->num_ids() - 1,
                                         run.target.vocab_size),
                     .where = run.location.folder,
                     .cause = {},
                     .hint = "tokenizer.json and config.json do not belong together; download the "
                             "model again"});
    }
}

}  // namespace

EpochSizes epoch_sizes_of(const std::vector<SampleId>& train_ids,
                          std::span<const data::DataState> states) {
    const auto count = [&](const data::DataState& state) {
        return std::ssize(ids_below(train_ids, state.num_rows));
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

PreparedRun prepare_run(const Settings& settings, const std::optional<SavedData>& saved) {
    PreparedRun run;
    run.location = target::find_target(settings.run.target);
    run.target = target::TargetConfig::read(run.location.folder);
    target::judge_target(run.location.folder);
    run.devices = gpu::parse_devices(settings.run.gpus);
    run.tokenizer = std::make_shared<const data::Tokenizer>(data::Tokenizer::from_file(
        (std::filesystem::path(run.location.folder) / "tokenizer.json").string()));
    check_tokenizer_fits(run);
    data::DetectedFormat format = data::choose_chat_format(
        settings.data.chat_format, settings.data.generic, run.location.folder, *run.tokenizer);
    run.format = std::move(format.format);
    run.format_origin = std::move(format.origin);

    std::optional<DraftChoice> init;
    if (!settings.run.init.empty()) {
        const std::string folder = target::find_target(settings.run.init).folder;
        run.init = load_draft(folder);
        init = DraftChoice{run.init->config, folder};
    }
    run.draft =
        choose_drafter(settings.draft, init, run.target, run.location, *run.tokenizer, *run.format);

    data::DatasetOptions options;
    options.max_length = settings.data.max_length;
    options.max_bad_fraction = settings.data.max_bad_fraction;
    options.max_anchors = settings.draft.anchors;
    options.render = settings.data.render;
    options.num_threads = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
    run.training = std::make_unique<data::Dataset>(
        data::Dataset::open(data_files(settings.run.data), run.tokenizer, run.format, options));
    if (!settings.run.eval_data.empty()) {
        run.evaluation = std::make_unique<data::Dataset>(data::Dataset::open(
            data_files(settings.run.eval_data), run.tokenizer, run.format, options));
    }
    settle_history(settings, saved, run);
    split_held_out(settings, run);
    const std::span states(run.history->states());
    run.epoch_sizes = epoch_sizes_of(run.train_ids, states);
    run.sizes_before =
        epoch_sizes_of(run.train_ids, states.first(states.size() - (run.growth.empty() ? 0 : 1)));

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

    run.plan = make_plan({.settings = settings,
                          .target = run.target,
                          .draft = run.draft.config,
                          .data = run.training->report(),
                          .num_train_samples = static_cast<std::int64_t>(run.train_ids.size()),
                          .devices = run.devices,
                          .memory = gpu::memory_of});
    return run;
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
    identity["target"] = fmt::format(
        "{} {:016x}", run.target.architecture, weights_fingerprint(run.location.folder));
    identity[kDataIdentity] = run.history->to_text();
    if (run.evaluation) {
        identity["eval_data"] = data::DataHistory(run.evaluation->state()).to_text();
    }
    identity["chat_format"] = std::string(run.format->name());
    return identity;
}

void print_header(const PreparedRun& run, const std::vector<std::string>& changed_settings) {
    const data::DataReport& data = run.training->report();
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
    log_info(
        "data      {} of {} samples are usable: {} tokens, {} of them trained, in {} format (by "
        "{}); "
        "{} to train on, {} held out",
        format_count(data.usable),
        format_count(data.lines),
        format_count(data.tokens),
        format_count(data.trainable_tokens),
        run.format->name(),
        run.format_origin,
        format_count(static_cast<std::int64_t>(run.train_ids.size())),
        format_count(static_cast<std::int64_t>(run.held_out_ids.size())));
    for (const auto& [kind, count] : data.refused) {
        const auto example = data.first_example.find(kind);
        log_warning("{} samples refused ({}): {}",
                    count,
                    kind,
                    example == data.first_example.end() ? "" : example->second);
    }
    if (data.cut > 0) {
        log_warning("{} samples are longer than data.max_length and were cut at the end",
                    format_count(data.cut));
    }
    if (data.vanished_bytes > 0) {
        log_warning("{} bytes of the data have no token in this vocabulary and leave no trace",
                    format_count(data.vanished_bytes));
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
