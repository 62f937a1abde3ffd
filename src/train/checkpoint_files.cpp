// SPDX-License-Identifier: Apache-2.0
#include "checkpoint_files.hpp"

#include <dflash/core/check.hpp>
#include <dflash/core/error.hpp>
#include <dflash/core/log.hpp>
#include <dflash/io/atomic_file.hpp>
#include <dflash/io/checksums.hpp>
#include <dflash/io/json.hpp>
#include <dflash/io/safetensors.hpp>
#include <dflash/io/storage_error.hpp>
#include <dflash/tensor/bridge.hpp>

#include <algorithm>
#include <filesystem>
#include <fmt/format.h>
#include <utility>
#include <vector>

namespace dflash::train {
namespace fs = std::filesystem;

namespace {

constexpr const char* kAcceptanceFile = "acceptance.json";
constexpr const char* kProductFile = "state/products.json";

// Pieces in which a tensor is handed to the writer, so that converting to bf16 needs no copy of a
// whole weight.
constexpr std::int64_t kPieceElements = std::int64_t{1} << 20;

// The three parts of OptimizerState, by the prefixes of their names in the file.
std::vector<std::pair<std::string, const at::Tensor*>> parts_of(const OptimizerState& state) {
    return {{"master.", &state.master},
            {"exp_avg.", &state.exp_avg},
            {"exp_avg_sq.", &state.exp_avg_sq}};
}

// Appends sources for all weights of a flat buffer, converted to `dtype` piece by piece.
void add_sources(std::vector<io::TensorSource>& sources,
                 const model::DraftConfig& config,
                 const at::Tensor& flat,
                 const std::string& prefix,
                 at::ScalarType dtype,
                 const std::function<void()>& between) {
    DFLASH_CHECK(model::num_parameters(config) == flat.numel(),
                 "weights have {} elements, the buffer {}",
                 model::num_parameters(config),
                 flat.numel());
    std::int64_t offset = 0;
    for (const model::WeightSpec& spec : model::weight_specs(config)) {
        const std::int64_t count = spec.num_elements();
        sources.push_back(
            {.name = prefix + spec.name,
             .dtype = tensor::file_dtype(dtype),
             .shape = spec.shape,
             .write = [values = flat.narrow(0, offset, count), dtype, between](const auto& sink) {
                 for (std::int64_t at = 0; at < values.numel(); at += kPieceElements) {
                     const std::int64_t size = std::min(kPieceElements, values.numel() - at);
                     between();
                     sink(tensor::bytes_of(values.narrow(0, at, size).to(dtype).contiguous()));
                 }
             }});
        offset += count;
    }
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
         {"identity", identity},
         {"checksums", io::Json::string(kChecksumFile)}});
}

std::string acceptance_text(double acceptance) {
    return io::Json::object({{"acceptance_length", io::Json::number(acceptance)}}).dump() + "\n";
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

// A count of state.json, which is never negative.
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

// Changes the list of checksums of a folder, if it has one.
void edit_checksums(const std::string& folder, const std::function<void(io::Checksums&)>& edit) {
    const std::string list = folder + "/" + kChecksumFile;
    std::error_code ignored;
    if (fs::exists(list, ignored)) {
        io::Checksums checksums = io::read_checksums(list);
        edit(checksums);
        io::write_file_atomically(list, io::to_text(checksums));
    }
}

// Compares the files of a checkpoint with their checksums, if it has them.
void verify(const std::string& folder, const io::Json& state, const std::string& state_path) {
    if (state.find("checksums") == nullptr) {
        log_info("{} has no checksums, as an older dflash wrote it: its files are not verified",
                 folder);
        return;
    }
    const std::string list =
        (fs::path(folder) / state.require_string("checksums", state_path)).string();
    if (std::error_code ignored; !fs::exists(list, ignored)) {
        throw Error(ErrorKind::Data,
                    {.what = "the list of checksums that state.json names is missing",
                     .where = list,
                     .cause = {},
                     .hint = {}});
    }
    io::verify_checksums(folder, io::read_checksums(list), io::From::Anywhere);
}

}  // namespace

std::int64_t checkpoint_bytes(std::int64_t num_parameters) {
    // bf16 draft; fp32 master weights and two moments; headers and the small files, generously.
    return num_parameters * (2 + 12) + (std::int64_t{1} << 20);
}

std::int64_t write_checkpoint_files(const std::string& folder,
                                    const Checkpoint& checkpoint,
                                    std::optional<double> acceptance,
                                    const std::function<void()>& between) {
    io::create_folders(folder + "/draft");
    io::create_folders(folder + "/state");
    const auto path_of = [&](const std::string& name) { return folder + "/" + name; };
    io::Checksums checksums;
    const auto write_text = [&](const std::string& name, const std::string& text) {
        io::write_file_atomically(path_of(name), text);
        checksums[name] = io::xxh64_hex(text);
    };
    const auto write_tensors = [&](const std::string& name,
                                   const std::vector<io::TensorSource>& sources,
                                   const std::map<std::string, std::string>& metadata) {
        checksums[name] = io::write_safetensors(path_of(name), sources, metadata);
    };

    write_text("draft/config.json", checkpoint.config.to_json().dump_pretty() + "\n");
    const OptimizerState& state = checkpoint.optimizer;
    std::vector<io::TensorSource> draft;
    add_sources(draft, checkpoint.config, state.master, "", at::kBFloat16, between);
    write_tensors("draft/model.safetensors", draft, {{"format", "pt"}});
    std::vector<io::TensorSource> tensors;
    for (const auto& [prefix, flat] : parts_of(state)) {
        add_sources(tensors, checkpoint.config, *flat, prefix, at::kFloat, between);
    }
    write_tensors("state/optimizer.safetensors", tensors, {});
    write_text("state/state.json", state_json(checkpoint).dump_pretty() + "\n");
    if (!checkpoint.products.empty()) {
        write_text(kProductFile, checkpoint.products.to_text());
    }
    if (acceptance) {
        write_text(kAcceptanceFile, acceptance_text(*acceptance));
    }
    io::write_file_atomically(path_of(kChecksumFile), io::to_text(checksums));

    std::int64_t bytes = 0;
    for (const auto& [name, hash] : checksums) {
        std::error_code ignored;
        bytes += static_cast<std::int64_t>(fs::file_size(path_of(name), ignored));
    }
    return bytes;
}

void read_back(const std::string& folder, const std::function<void()>& between) {
    try {
        io::verify_checksums(folder,
                             io::read_checksums(folder + "/" + kChecksumFile),
                             io::From::Disk,
                             [&](std::int64_t /*bytes*/) { between(); });
    } catch (const Error& error) {
        if (error.kind() != ErrorKind::Data) {
            throw;
        }
        ErrorParts parts = error.parts();
        parts.what = "what was written reads back differently: " + parts.what;
        parts.hint = "The disk or the machine's memory may be at fault; see the system's log";
        throw Error(ErrorKind::Storage, std::move(parts));
    }
}

Checkpoint read_checkpoint_files(const std::string& folder, std::int64_t step) {
    const std::string state_path = folder + "/state/state.json";
    const io::Json json = io::read_json_file(state_path);
    const std::int64_t version = json.require_integer("format_version", state_path);
    if (version != kFormatVersion) {
        throw OtherVersion{version};
    }
    verify(folder, json, state_path);

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
    p.rows = require_count(json, "rows", state_path);
    p.samples = require_count(json, "samples", state_path);
    p.tokens = require_count(json, "tokens", state_path);
    p.trained_s = json.require_number("trained_s", state_path);
    // Written since steps can be skipped; before that the moments had seen them all.
    checkpoint.optimizer.steps = json.find("optimizer_steps") == nullptr
                                     ? p.step
                                     : require_count(json, "optimizer_steps", state_path);
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
    const std::string product_path = folder + "/" + kProductFile;
    if (std::error_code ignored; fs::exists(product_path, ignored)) {
        checkpoint.products =
            ProductRecord::parse(io::read_json_file(product_path).dump(), product_path);
    }
    const io::SafetensorsFile file(folder + "/state/optimizer.safetensors");
    const std::int64_t size = model::num_parameters(checkpoint.config);
    OptimizerState& state = checkpoint.optimizer;
    for (at::Tensor* flat : {&state.master, &state.exp_avg, &state.exp_avg_sq}) {
        *flat = at::empty({size}, at::kFloat);
    }
    for (const auto& [prefix, flat] : parts_of(state)) {
        read_flat(file, checkpoint.config, prefix, *flat);
    }
    return checkpoint;
}

std::optional<double> read_acceptance(const std::string& folder) {
    const std::string path = folder + "/" + kAcceptanceFile;
    std::error_code ignored;
    if (!fs::exists(path, ignored)) {
        return std::nullopt;
    }
    return io::read_json_file(path).optional_number("acceptance_length", path);
}

void add_acceptance(const std::string& folder, double acceptance) {
    // In this order: a file that is not listed is no damage, one that is listed and missing is.
    const std::string text = acceptance_text(acceptance);
    io::write_file_atomically(folder + "/" + kAcceptanceFile, text);
    edit_checksums(folder, [&](io::Checksums& checksums) {
        checksums[kAcceptanceFile] = io::xxh64_hex(text);
    });
}

void remove_state(const std::string& folder) {
    // Renamed first: a folder that is half removed must not look like a checkpoint.
    const std::string doomed = folder + "/state.removed";
    remove_tree(doomed);
    rename_path(folder + "/state", doomed);
    remove_tree(doomed);
    edit_checksums(folder, [](io::Checksums& checksums) {
        std::erase_if(checksums, [](const auto& file) { return file.first.starts_with("state/"); });
    });
}

void rename_path(const std::string& from, const std::string& to) {
    std::error_code error;
    fs::rename(from, to, error);
    if (error) {
        throw io::storage_error(fmt::format("cannot rename {} to", from), to, error.value());
    }
}

void remove_tree(const std::string& path) {
    std::error_code error;
    fs::remove_all(path, error);
    if (error) {
        throw io::storage_error("cannot remove", path, error.value());
    }
}

}  // namespace dflash::train
