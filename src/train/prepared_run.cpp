// SPDX-License-Identifier: Apache-2.0
#include <dflash/core/error.hpp>
#include <dflash/core/log.hpp>
#include <dflash/core/random.hpp>
#include <dflash/core/text.hpp>
#include <dflash/io/safetensors.hpp>
#include <dflash/target/target_model.hpp>
#include <dflash/train/prepared_run.hpp>

#include <algorithm>
#include <filesystem>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <thread>
#include <unordered_set>

namespace dflash::train {
namespace {

std::vector<std::string> split_list(const std::string& text) {
    std::vector<std::string> parts;
    std::size_t begin = 0;
    while (begin <= text.size()) {
        const std::size_t comma = std::min(text.find(',', begin), text.size());
        if (comma > begin) {
            parts.push_back(text.substr(begin, comma - begin));
        }
        begin = comma + 1;
    }
    return parts;
}

std::vector<std::string> data_files(const std::string& setting) {
    std::vector<std::string> files = split_list(setting);
    if (files.empty()) {
        throw Error(ErrorKind::Config,
                    {.what = "no training data",
                     .where = {},
                     .cause = {},
                     .hint = "Name a JSON-lines file with --data prompts.jsonl"});
    }
    return files;
}

void split_held_out(const Settings& settings, PreparedRun& run) {
    run.train_ids = run.training->usable();
    if (run.evaluation) {
        run.held_out_ids = run.evaluation->usable();
        return;
    }
    const auto num_samples = static_cast<std::int64_t>(run.train_ids.size());
    const std::int64_t count = num_held_out(settings.eval.fraction, num_samples);
    RandomStream stream(
        static_cast<std::uint64_t>(settings.run.seed), Purpose::Holdout, /*epoch=*/0, /*id=*/0);
    const std::vector<std::uint64_t> places = stream.sample_sorted(
        static_cast<std::uint64_t>(num_samples), static_cast<std::uint64_t>(count));
    for (const std::uint64_t place : places) {
        run.held_out_ids.push_back(run.train_ids[place]);
    }
    const std::unordered_set<SampleId> held_out(run.held_out_ids.begin(), run.held_out_ids.end());
    std::erase_if(run.train_ids, [&](SampleId id) { return held_out.contains(id); });
    if (run.train_ids.empty()) {
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

PreparedRun prepare_run(const Settings& settings) {
    PreparedRun run;
    run.location = target::find_target(settings.run.target);
    run.target = target::TargetConfig::read(run.location.folder);
    target::judge_target(run.location.folder);
    run.devices = gpu::parse_devices(settings.run.gpus);
    run.tokenizer = std::make_shared<const data::Tokenizer>(data::Tokenizer::from_file(
        (std::filesystem::path(run.location.folder) / "tokenizer.json").string()));
    check_tokenizer_fits(run);
    run.format = settings.data.chat_format
                     ? data::make_chat_format(*settings.data.chat_format)
                     : data::detect_chat_format(run.location.folder, *run.tokenizer);

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
    options.num_threads = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
    run.training = std::make_unique<data::Dataset>(
        data::Dataset::open(data_files(settings.run.data), run.tokenizer, run.format, options));
    if (!settings.run.eval_data.empty()) {
        run.evaluation = std::make_unique<data::Dataset>(data::Dataset::open(
            data_files(settings.run.eval_data), run.tokenizer, run.format, options));
    }
    split_held_out(settings, run);

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
    identity["data"] = fmt::format("{:016x}", run.training->content_hash());
    if (run.evaluation) {
        identity["eval_data"] = fmt::format("{:016x}", run.evaluation->content_hash());
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
        "data      {} of {} samples are usable: {} tokens, {} of them trained, in {} format; {} to "
        "train on, {} held out",
        format_count(data.usable),
        format_count(data.lines),
        format_count(data.tokens),
        format_count(data.trainable_tokens),
        run.format->name(),
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
