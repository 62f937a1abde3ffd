// SPDX-License-Identifier: Apache-2.0
#include <dflash/core/check.hpp>
#include <dflash/core/error.hpp>
#include <dflash/core/log.hpp>
#include <dflash/io/atomic_file.hpp>
#include <dflash/io/json.hpp>
#include <dflash/io/safetensors.hpp>
#include <dflash/tensor/bridge.hpp>
#include <dflash/train/checkpoint.hpp>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <set>
#include <unistd.h>

namespace dflash::train {
namespace fs = std::filesystem;

namespace {

constexpr std::int64_t kFormatVersion = 1;

// Pieces in which a tensor is handed to the writer, so that converting to bf16 needs no copy of a
// whole weight.
constexpr std::int64_t kPieceElements = std::int64_t{1} << 20;

// Sources for all weights of a flat buffer, converted to `dtype` piece by piece.
std::vector<io::TensorSource> weight_sources(const model::DraftConfig& config,
                                             const at::Tensor& flat,
                                             const std::string& prefix,
                                             at::ScalarType dtype) {
    std::vector<io::TensorSource> sources;
    std::int64_t offset = 0;
    for (const model::WeightSpec& spec : model::weight_specs(config)) {
        const std::int64_t count = spec.num_elements();
        sources.push_back(
            {.name = prefix + spec.name,
             .dtype = tensor::file_dtype(dtype),
             .shape = spec.shape,
             .write = [values = flat.narrow(0, offset, count), dtype](const auto& sink) {
                 for (std::int64_t at = 0; at < values.numel(); at += kPieceElements) {
                     const std::int64_t size = std::min(kPieceElements, values.numel() - at);
                     sink(tensor::bytes_of(values.narrow(0, at, size).to(dtype).contiguous()));
                 }
             }});
        offset += count;
    }
    DFLASH_CHECK(
        offset == flat.numel(), "weights have {} elements, the buffer {}", offset, flat.numel());
    return sources;
}

io::Json state_json(const Checkpoint& checkpoint) {
    const Progress& p = checkpoint.progress;
    io::Json identity = io::Json::object();
    for (const auto& [name, value] : checkpoint.identity) {
        identity.set(name, io::Json::string(value));
    }
    return io::Json::object(
        {{"format_version", io::Json::integer(kFormatVersion)},
         {"step", io::Json::integer(p.step)},
         {"optimizer_steps", io::Json::integer(checkpoint.optimizer.steps)},
         {"rows", io::Json::integer(p.rows)},
         {"samples", io::Json::integer(p.samples)},
         {"tokens", io::Json::integer(p.tokens)},
         {"trained_s", io::Json::number(p.trained_s)},
         {"cursor",
          io::Json::object({{"epoch", io::Json::integer(p.cursor.epoch)},
                            {"window", io::Json::integer(p.cursor.window)},
                            {"row_in_window", io::Json::integer(p.cursor.row_in_window)}})},
         {"identity", identity}});
}

void read_flat(const io::SafetensorsFile& file,
               const model::DraftConfig& config,
               const std::string& prefix,
               const at::Tensor& flat) {
    std::int64_t offset = 0;
    for (const model::WeightSpec& spec : model::weight_specs(config)) {
        const std::int64_t count = spec.num_elements();
        tensor::load_into(file.at(prefix + spec.name),
                          flat.narrow(0, offset, count).view(spec.shape),
                          file.path());
        offset += count;
    }
}

std::optional<std::int64_t> step_of(const std::string& folder_name) {
    std::int64_t step = 0;
    if (!folder_name.starts_with("step-")) {
        return std::nullopt;
    }
    const char* const end = folder_name.data() + folder_name.size();
    const auto parsed = std::from_chars(folder_name.data() + 5, end, step);
    return parsed.ec == std::errc() && parsed.ptr == end ? std::optional(step) : std::nullopt;
}

// Acceptance of a saved draft, kept beside it for retention; nothing if it was never evaluated.
std::optional<double> saved_acceptance(const fs::path& step_folder) {
    const fs::path path = step_folder / "acceptance.json";
    return fs::exists(path) ? io::read_json_file(path.string())
                                  .optional_number("acceptance_length", path.string())
                            : std::nullopt;
}

void write_acceptance(const std::string& step_folder, double acceptance) {
    io::write_file_atomically(
        step_folder + "/acceptance.json",
        io::Json::object({{"acceptance_length", io::Json::number(acceptance)}}).dump() + "\n");
}

/// A count of state.json, which is never negative.
std::int64_t require_count(const io::Json& json, const char* key, const std::string& path) {
    const std::int64_t count = json.require_integer(key, path);
    if (count < 0) {
        throw Error(ErrorKind::Data,
                    {.what = fmt::format("{}: got {}, expected 0 or more", key, count),
                     .where = path,
                     .cause = {},
                     .hint = {}});
    }
    return count;
}

/// Thrown by read_checkpoint: not damaged, but nothing for this program.
struct OtherVersion {
    std::int64_t version;
};

Checkpoint read_checkpoint(const std::string& folder, std::int64_t step) {
    const std::string state_path = folder + "/state/state.json";
    const io::Json json = io::read_json_file(state_path);
    const std::int64_t version = json.require_integer("format_version", state_path);
    if (version != kFormatVersion) {
        throw OtherVersion{version};
    }
    Checkpoint checkpoint;
    Progress& p = checkpoint.progress;
    p.step = require_count(json, "step", state_path);
    if (p.step != step) {
        throw Error(
            ErrorKind::Data,
            {.what = fmt::format("step: got {}, expected {}, as the folder says", p.step, step),
             .where = state_path,
             .cause = {},
             .hint = {}});
    }
    // Checkpoints from before steps could be skipped do not have it.
    checkpoint.optimizer.steps = json.find("optimizer_steps") == nullptr
                                     ? p.step
                                     : require_count(json, "optimizer_steps", state_path);
    p.rows = require_count(json, "rows", state_path);
    p.samples = require_count(json, "samples", state_path);
    p.tokens = require_count(json, "tokens", state_path);
    p.trained_s = json.require_number("trained_s", state_path);
    const io::Json* cursor = json.find("cursor");
    const io::Json* identity = json.find("identity");
    if (cursor == nullptr || !cursor->is_object() || identity == nullptr ||
        !identity->is_object()) {
        throw Error(ErrorKind::Data,
                    {.what = "cursor and identity: expected objects",
                     .where = state_path,
                     .cause = {},
                     .hint = {}});
    }
    p.cursor.epoch = require_count(*cursor, "epoch", state_path);
    p.cursor.window = require_count(*cursor, "window", state_path);
    p.cursor.row_in_window = require_count(*cursor, "row_in_window", state_path);
    for (const auto& [name, value] : identity->members()) {
        checkpoint.identity[name] = value.is_string() ? value.as_string() : "";
    }
    checkpoint.config = model::DraftConfig::from_json(
        io::read_json_file(folder + "/draft/config.json"), folder + "/draft/config.json");
    const io::SafetensorsFile file(folder + "/state/optimizer.safetensors");
    for (auto [prefix, flat] : {std::pair{"master.", &checkpoint.optimizer.master},
                                std::pair{"exp_avg.", &checkpoint.optimizer.exp_avg},
                                std::pair{"exp_avg_sq.", &checkpoint.optimizer.exp_avg_sq}}) {
        *flat = at::empty({model::num_parameters(checkpoint.config)}, at::kFloat);
        read_flat(file, checkpoint.config, prefix, *flat);
    }
    return checkpoint;
}

}  // namespace

CheckpointStore::CheckpointStore(std::string run_folder,
                                 std::int64_t keep,
                                 std::int64_t keep_drafts)
    : run_folder_(std::move(run_folder)), keep_(keep), keep_drafts_(keep_drafts) {}

std::string CheckpointStore::folder_of(std::int64_t step) const {
    return (fs::path(run_folder_) / fmt::format("step-{:06}", step)).string();
}

void CheckpointStore::save(const Checkpoint& checkpoint, std::optional<double> acceptance) {
    const std::string final_folder = folder_of(checkpoint.progress.step);
    if (fs::exists(fs::path(final_folder) / "state")) {
        // Saved already, at the same step of the same run, but perhaps evaluated only now.
        if (acceptance && !acceptance_of(checkpoint.progress.step)) {
            write_acceptance(final_folder, *acceptance);
        }
        return;
    }
    const std::string temporary = fmt::format("{}.tmp-{}", final_folder, ::getpid());
    fs::remove_all(temporary);
    io::create_folders(temporary + "/draft");
    io::create_folders(temporary + "/state");
    io::write_file_atomically(temporary + "/draft/config.json",
                              checkpoint.config.to_json().dump_pretty() + "\n");
    const OptimizerState& o = checkpoint.optimizer;
    io::write_safetensors(temporary + "/draft/model.safetensors",
                          weight_sources(checkpoint.config, o.master, "", at::kBFloat16),
                          {{"format", "pt"}});
    std::vector<io::TensorSource> tensors =
        weight_sources(checkpoint.config, o.master, "master.", at::kFloat);
    for (auto& source : weight_sources(checkpoint.config, o.exp_avg, "exp_avg.", at::kFloat)) {
        tensors.push_back(std::move(source));
    }
    for (auto& source :
         weight_sources(checkpoint.config, o.exp_avg_sq, "exp_avg_sq.", at::kFloat)) {
        tensors.push_back(std::move(source));
    }
    io::write_safetensors(temporary + "/state/optimizer.safetensors", tensors);
    io::write_file_atomically(temporary + "/state/state.json",
                              state_json(checkpoint).dump_pretty() + "\n");
    if (acceptance) {
        write_acceptance(temporary, *acceptance);
    }
    fs::remove_all(final_folder);  // a draft that retention kept of an earlier, interrupted pass
                                   // over the same step
    io::publish_folder(temporary, final_folder);
    io::replace_symlink(run_folder_ + "/latest", fs::path(final_folder).filename().string());
    prune();
}

std::optional<double> CheckpointStore::acceptance_of(std::int64_t step) const {
    return saved_acceptance(folder_of(step));
}

std::vector<std::int64_t> CheckpointStore::steps() const {
    std::vector<std::int64_t> found;
    if (fs::is_directory(run_folder_)) {
        for (const fs::directory_entry& entry : fs::directory_iterator(run_folder_)) {
            const auto step = step_of(entry.path().filename().string());
            if (step && fs::exists(entry.path() / "state" / "state.json")) {
                found.push_back(*step);
            }
        }
    }
    std::sort(found.begin(), found.end());
    return found;
}

void CheckpointStore::prune() {
    std::vector<std::int64_t> whole = steps();
    if (static_cast<std::int64_t>(whole.size()) <= keep_) {
        return;
    }
    whole.resize(whole.size() - static_cast<std::size_t>(keep_));
    for (const std::int64_t step : whole) {
        // Renamed first: a folder that is half removed must not look like a checkpoint.
        const fs::path state = fs::path(folder_of(step)) / "state";
        const fs::path doomed = fs::path(folder_of(step)) / "state.removed";
        fs::rename(state, doomed);
        fs::remove_all(doomed);
    }
    std::vector<std::pair<double, fs::path>> drafts;
    for (const fs::directory_entry& entry : fs::directory_iterator(run_folder_)) {
        const auto step = step_of(entry.path().filename().string());
        if (step && !fs::exists(entry.path() / "state")) {
            drafts.emplace_back(saved_acceptance(entry.path()).value_or(0), entry.path());
        }
    }
    std::sort(drafts.begin(), drafts.end(), [](const auto& a, const auto& b) {
        return a.first > b.first;
    });
    for (std::size_t i = static_cast<std::size_t>(keep_drafts_); i < drafts.size(); ++i) {
        fs::remove_all(drafts[i].second);
    }
}

void CheckpointStore::remove_leftovers() const {
    if (!fs::is_directory(run_folder_)) {
        return;
    }
    for (const fs::directory_entry& entry : fs::directory_iterator(run_folder_)) {
        if (entry.path().filename().string().find(".tmp-") != std::string::npos) {
            log_info("removing {}, left by a save that was interrupted", entry.path().string());
            fs::remove_all(entry.path());
        }
        if (entry.is_directory()) {
            fs::remove_all(entry.path() / "state.removed");
        }
    }
}

void CheckpointStore::set_aside_after(std::int64_t step) const {
    for (const std::int64_t later : steps()) {
        if (later > step) {
            const std::string folder = folder_of(later);
            log_warning(
                "{} belongs to the former continuation of step {}; it is kept as {}.superseded",
                folder,
                step,
                folder);
            fs::remove_all(folder + ".superseded");
            fs::rename(folder, folder + ".superseded");
        }
    }
}

Checkpoint CheckpointStore::load(std::optional<std::int64_t> step) const {
    const std::vector<std::int64_t> available = steps();
    if (available.empty()) {
        throw Error(ErrorKind::Config,
                    {.what = "no checkpoint to resume from",
                     .where = run_folder_,
                     .cause = {},
                     .hint = "Start the run again with another --output"});
    }
    const std::int64_t chosen = step.value_or(available.back());
    if (std::find(available.begin(), available.end(), chosen) == available.end()) {
        throw Error(
            ErrorKind::Config,
            {.what = fmt::format("no whole checkpoint of step {}; there are those of steps {}",
                                 chosen,
                                 fmt::join(available, ", ")),
             .where = run_folder_,
             .cause = {},
             .hint = {}});
    }
    const std::string folder = folder_of(chosen);
    try {
        return read_checkpoint(folder, chosen);
    } catch (const OtherVersion& other) {
        throw Error(ErrorKind::Config,
                    {.what = fmt::format(
                         "format_version: got {}, expected {}", other.version, kFormatVersion),
                     .where = folder + "/state/state.json",
                     .cause = {},
                     .hint = "This checkpoint was written by another version of dflash"});
    } catch (const Error& error) {
        if (error.kind() == ErrorKind::Internal) {
            throw;
        }
        // A file that is missing or no JSON may be the user's mistake elsewhere; here we wrote it.
        std::vector<std::int64_t> others = available;
        std::erase(others, chosen);
        ErrorParts parts = error.parts();
        parts.hint = others.empty()
                         ? "The checkpoint is damaged, and there is no other to resume from"
                         : fmt::format(
                               "The checkpoint is damaged; resume from another one with "
                               "--step {}",
                               fmt::join(others, " or "));
        throw Error(ErrorKind::Data, std::move(parts));
    }
}

void require_same(const Identity& saved, const Identity& now, const std::string& run_folder) {
    std::set<std::string> names;
    for (const auto& [name, value] : saved) {
        names.insert(name);
    }
    for (const auto& [name, value] : now) {
        names.insert(name);
    }
    std::string differences;
    for (const std::string& name : names) {
        const auto was = saved.find(name);
        const auto is = now.find(name);
        const std::string before = was == saved.end() ? "(absent)" : was->second;
        const std::string after = is == now.end() ? "(absent)" : is->second;
        if (before != after) {
            differences += fmt::format("{}{}: {} when it was saved, {} now",
                                       differences.empty() ? "" : "; ",
                                       name,
                                       before,
                                       after);
        }
    }
    if (!differences.empty()) {
        throw Error(ErrorKind::Config,
                    {.what = "this run cannot be resumed with other maths: " + differences,
                     .where = run_folder,
                     .cause = {},
                     .hint = fmt::format("Resume without the change, or start a new run from its "
                                         "weights: --init {}/latest/draft",
                                         run_folder)});
    }
}

LoadedDraft load_draft(const std::string& folder) {
    const std::string config_path = folder + "/config.json";
    if (!fs::exists(config_path)) {
        throw Error(ErrorKind::Config,
                    {.what = "no config.json in the drafter's folder",
                     .where = folder,
                     .cause = {},
                     .hint = "Expected a folder with config.json and model.safetensors"});
    }
    LoadedDraft draft;
    draft.config = model::DraftConfig::from_json(io::read_json_file(config_path), config_path);
    const io::SafetensorsFolder weights(folder);
    std::set<std::string> unused;
    for (const std::string& name : weights.names()) {
        unused.insert(name);
    }
    draft.flat_fp32 = at::empty({model::num_parameters(draft.config)}, at::kFloat);
    std::int64_t offset = 0;
    for (const model::WeightSpec& spec : model::weight_specs(draft.config)) {
        const std::string prefixed = "model." + spec.name;
        const std::string& name =
            weights.find(spec.name) == nullptr && weights.find(prefixed) != nullptr ? prefixed
                                                                                    : spec.name;
        const io::TensorView* view = weights.find(name);
        if (view == nullptr) {
            throw Error(ErrorKind::Data,
                        {.what = fmt::format("the drafter has no weight {} of shape [{}]",
                                             spec.name,
                                             fmt::join(spec.shape, ", ")),
                         .where = folder,
                         .cause = {},
                         .hint = {}});
        }
        const std::int64_t count = spec.num_elements();
        tensor::load_into(*view,
                          draft.flat_fp32.narrow(0, offset, count).view(spec.shape),
                          weights.file_of(name));
        offset += count;
        unused.erase(name);
    }
    if (!unused.empty()) {
        throw Error(
            ErrorKind::Data,
            {.what =
                 fmt::format("the drafter has weights that its config.json does not explain: {}",
                             fmt::join(unused, ", ")),
             .where = folder,
             .cause = {},
             .hint = "Plain DFlash drafters have 11 weights a layer and fc, hidden_norm, norm"});
    }
    return draft;
}

}  // namespace dflash::train
