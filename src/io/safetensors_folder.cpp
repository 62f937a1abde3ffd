// SPDX-License-Identifier: Apache-2.0
// The tensors of a model folder, and the index that names the shard of each.
#include <dflash/core/error.hpp>
#include <dflash/core/log.hpp>
#include <dflash/core/text.hpp>
#include <dflash/io/json.hpp>
#include <dflash/io/safetensors.hpp>

#include <algorithm>
#include <filesystem>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <set>

namespace dflash::io {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void fail(ErrorKind kind, std::string what, std::string where, std::string hint) {
    throw Error(
        kind,
        {.what = std::move(what), .where = std::move(where), .cause = {}, .hint = std::move(hint)});
}

/// A shard must lie inside the folder: an index is input from outside.
bool is_inside(const std::string& shard) {
    const fs::path path(shard);
    return !shard.empty() && path.is_relative() &&
           std::none_of(path.begin(), path.end(), [](const fs::path& p) { return p == ".."; });
}

/// The weight_map of an index: tensor name -> shard.
std::map<std::string, std::string> read_weight_map(const Json& index, const std::string& path) {
    const Json* weight_map = index.find("weight_map");
    if (weight_map == nullptr || !weight_map->is_object()) {
        fail(ErrorKind::Data,
             fmt::format("weight_map: got {}, expected an object of shard names",
                         weight_map == nullptr ? "nothing" : weight_map->kind_name()),
             path,
             {});
    }
    std::map<std::string, std::string> shards;
    for (const auto& [name, shard] : weight_map->members()) {
        if (!shard.is_string() || !is_inside(shard.as_string())) {
            fail(ErrorKind::Data,
                 fmt::format("weight_map: {}: got {}, expected the name of a file in the folder",
                             quote(name),
                             quote(shard.dump(), 60)),
                 path,
                 {});
        }
        if (!shards.emplace(name, shard.as_string()).second) {
            fail(
                ErrorKind::Data, fmt::format("weight_map: {} stands twice", quote(name)), path, {});
        }
    }
    return shards;
}

/// total_size is written by other tools from what they held in memory: tied weights counted twice,
/// quantised ones by element, as a fraction. Since every shard is checked byte by byte against its
/// own header and every listed tensor was found, a difference is only worth a warning.
void check_total_size(const Json& index, const std::string& path, Bytes bytes) {
    const Json* metadata = index.find("metadata");
    const Json* total = metadata == nullptr ? nullptr : metadata->find("total_size");
    if (total == nullptr || total->is_null()) {
        return;
    }
    const auto stated = total->is_number() ? total->to_integer() : std::nullopt;
    if (stated != bytes) {
        log_warning(
            "{}: metadata.total_size is {}, the listed tensors have {} bytes; going by the "
            "tensors",
            path,
            total->is_number() ? total->number_text() : std::string(total->kind_name()),
            bytes);
    }
}

/// Tensors that the index does not know are what loaders of other programs skip as well; a model
/// that lacks one says so itself.
void warn_of_unlisted(const std::vector<SafetensorsFile>& files,
                      const std::map<std::string, std::size_t, std::less<>>& listed,
                      const std::string& index_path) {
    std::vector<std::string> unlisted;
    for (std::size_t i = 0; i < files.size(); ++i) {
        for (const TensorView& tensor : files[i].tensors()) {
            const auto found = listed.find(tensor.name);
            if (found == listed.end() || found->second != i) {
                unlisted.push_back(quote(tensor.name));
            }
        }
    }
    if (!unlisted.empty()) {
        const std::size_t shown = std::min<std::size_t>(unlisted.size(), 3);
        log_warning(
            "{}: {} tensors of the shards are not listed there and are not read: {}{}",
            index_path,
            unlisted.size(),
            fmt::join(
                unlisted.begin(), unlisted.begin() + static_cast<std::ptrdiff_t>(shown), ", "),
            shown < unlisted.size() ? ", ..." : "");
    }
}

}  // namespace

SafetensorsFolder::SafetensorsFolder(const std::string& folder) : folder_(folder) {
    const std::string single = (fs::path(folder) / "model.safetensors").string();
    const std::string index_path = (fs::path(folder) / "model.safetensors.index.json").string();
    std::error_code ignored;
    const bool has_single = fs::exists(single, ignored);
    const bool has_index = fs::exists(index_path, ignored);
    if (has_single) {
        if (has_index) {
            log_warning("{}: there is also an index of shards; reading model.safetensors", folder);
        }
        files_.emplace_back(single);
        for (const TensorView& tensor : files_[0].tensors()) {
            file_index_.emplace(tensor.name, 0);
        }
        return;
    }
    if (!has_index) {
        fail(ErrorKind::Config,
             "no weights: expected model.safetensors or model.safetensors.index.json",
             folder,
             "Name a model folder in the Hugging Face format, with its weights as safetensors");
    }

    const Json index = read_json_file(index_path);
    const std::map<std::string, std::string> weight_map = read_weight_map(index, index_path);
    std::set<std::string> shards;
    std::vector<std::string> missing;
    for (const auto& [name, shard] : weight_map) {
        if (shards.insert(shard).second && !fs::exists(fs::path(folder) / shard, ignored)) {
            missing.push_back(shard);
        }
    }
    if (!missing.empty()) {
        std::sort(missing.begin(), missing.end());
        fail(ErrorKind::Data,
             fmt::format("{} of {} shards are not there: {}",
                         missing.size(),
                         shards.size(),
                         fmt::join(missing, ", ")),
             index_path,
             "The download may be incomplete; download the model again");
    }
    std::map<std::string, std::size_t> file_of_shard;
    for (const std::string& shard : shards) {
        file_of_shard.emplace(shard, files_.size());
        files_.emplace_back((fs::path(folder) / shard).string());
    }
    Bytes bytes = 0;
    for (const auto& [name, shard] : weight_map) {
        const std::size_t file = file_of_shard.at(shard);
        const TensorView* tensor = files_[file].find(name);
        if (tensor == nullptr) {
            const std::string_view wanted = name;  // clang 14 captures no structured binding
            const auto holder =
                std::find_if(files_.begin(), files_.end(), [&](const SafetensorsFile& f) {
                    return f.find(wanted) != nullptr;
                });
            fail(ErrorKind::Data,
                 fmt::format(
                     "{} is not in {}, where the index puts it, {}",
                     quote(name),
                     shard,
                     holder == files_.end() ? "nor in another shard" : "but in " + holder->path()),
                 index_path,
                 "Shards and index do not belong together; download the model again");
        }
        file_index_.emplace(name, file);
        bytes += static_cast<Bytes>(tensor->data.size());
    }
    check_total_size(index, index_path, bytes);
    warn_of_unlisted(files_, file_index_, index_path);
}

const TensorView* SafetensorsFolder::find(std::string_view name) const {
    const auto found = file_index_.find(name);
    return found == file_index_.end() ? nullptr : files_[found->second].find(name);
}

std::vector<std::string> SafetensorsFolder::names() const {
    std::vector<std::string> names;
    names.reserve(file_index_.size());
    for (const auto& [name, file] : file_index_) {
        names.push_back(name);
    }
    return names;
}

std::string SafetensorsFolder::file_of(std::string_view name) const {
    const auto found = file_index_.find(name);
    return found == file_index_.end() ? folder_ : files_[found->second].path();
}

}  // namespace dflash::io
