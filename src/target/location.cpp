// SPDX-License-Identifier: Apache-2.0
// Where a target lies: a folder, or an id in the local cache of the Hugging Face hub. Layout of the
// cache (huggingface_hub): models--ORG--NAME/refs/main holds a revision, snapshots/REVISION the
// files.
#include <dflash/core/error.hpp>
#include <dflash/core/text.hpp>
#include <dflash/target/config.hpp>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <filesystem>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <fstream>

namespace dflash::target {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kModelPrefix = "models--";

std::string environment(const char* name) {
    const char* value = std::getenv(name);
    return value == nullptr ? "" : value;
}

std::vector<fs::path> cache_roots() {
    std::vector<fs::path> roots;
    const auto add = [&](const fs::path& root) {
        if (std::find(roots.begin(), roots.end(), root) == roots.end()) {
            roots.push_back(root);
        }
    };
    if (const std::string cache = environment("HF_HUB_CACHE"); !cache.empty()) {
        add(cache);
    }
    if (const std::string home = environment("HF_HOME"); !home.empty()) {
        add(fs::path(home) / "hub");
    }
    if (const std::string home = environment("HOME"); !home.empty()) {
        add(fs::path(home) / ".cache" / "huggingface" / "hub");
    }
    return roots;
}

// ORG/NAME or NAME (old models have no organisation), of letters, digits, '.', '_', '-'. Checked
// because it becomes part of a path.
bool is_model_id(std::string_view id) {
    std::size_t slashes = 0;
    for (const char c : id) {
        slashes += c == '/' ? 1 : 0;
        if (c != '/' && std::isalnum(static_cast<unsigned char>(c)) == 0 && c != '.' && c != '_' &&
            c != '-') {
            return false;
        }
    }
    return !id.empty() && slashes <= 1 && id.front() != '/' && id.back() != '/' &&
           id.front() != '.' && id.find("..") == std::string_view::npos;
}

// "models--Qwen--Qwen3-8B" -> "Qwen/Qwen3-8B"; empty if it is no such name.
std::string id_of_folder(std::string_view folder) {
    if (!folder.starts_with(kModelPrefix)) {
        return "";
    }
    std::string id(folder.substr(kModelPrefix.size()));
    if (const std::size_t at = id.find("--"); at != std::string::npos) {
        id.replace(at, 2, "/");
    }
    return id;
}

std::string folder_of_id(std::string id) {
    if (const std::size_t at = id.find('/'); at != std::string::npos) {
        id.replace(at, 1, "--");
    }
    return std::string(kModelPrefix) + id;
}

std::string short_name(const std::string& id) {
    const std::size_t at = id.rfind('/');
    return at == std::string::npos ? id : id.substr(at + 1);
}

std::vector<std::string> cached_ids(const std::vector<fs::path>& roots) {
    std::vector<std::string> ids;
    for (const fs::path& root : roots) {
        std::error_code error;
        for (fs::directory_iterator it(root, error), end; !error && it != end;
             it.increment(error)) {
            std::string id = id_of_folder(it->path().filename().string());
            if (!id.empty()) {
                ids.push_back(std::move(id));
            }
        }
    }
    std::sort(ids.begin(), ids.end());
    ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
    return ids;
}

std::string first_line(const fs::path& path) {
    std::ifstream file(path);
    std::string line;
    std::getline(file, line);
    while (!line.empty() && std::isspace(static_cast<unsigned char>(line.back())) != 0) {
        line.pop_back();
    }
    return line;
}

// A folder that is itself a snapshot of a cache has its name and revision in its path.
TargetLocation describe_folder(const std::string& folder) {
    std::error_code error;
    fs::path path = fs::weakly_canonical(folder, error);
    if (error) {
        path = folder;
    }
    if (path.filename().empty()) {
        path = path.parent_path();
    }
    TargetLocation location{.folder = folder, .name = path.filename().string(), .revision = ""};
    if (path.parent_path().filename() == "snapshots") {
        const std::string id = id_of_folder(path.parent_path().parent_path().filename().string());
        if (!id.empty()) {
            location.name = short_name(id);
            location.revision = path.filename().string();
        }
    }
    return location;
}

[[noreturn]] void fail_not_found(const std::string& id, const std::vector<fs::path>& roots) {
    std::vector<std::string> places;
    places.reserve(roots.size());
    for (const fs::path& root : roots) {
        places.push_back(root.string());
    }
    const std::vector<std::string> ids = cached_ids(roots);
    const auto nearest = nearest_name(id, ids);
    throw Error(
        ErrorKind::Config,
        {.what =
             fmt::format("target {} is neither a folder nor in the local Hugging Face cache", id),
         .where = fmt::format("{}", fmt::join(places, ", ")),
         .cause = ids.empty() ? "the cache holds no models"
                              : fmt::format("the cache holds {}", fmt::join(ids, ", ")),
         .hint = fmt::format("{}Run `hf download {}`, or give the folder of a model with --target",
                             nearest ? fmt::format("Did you mean {}? ", *nearest) : "",
                             id)});
}

}  // namespace

TargetLocation find_target(const std::string& folder_or_id) {
    std::error_code error;
    if (fs::is_directory(folder_or_id, error)) {
        return describe_folder(folder_or_id);
    }
    if (fs::exists(folder_or_id, error)) {
        throw Error(ErrorKind::Config,
                    {.what = "the target is a file, expected the folder of a model",
                     .where = folder_or_id,
                     .cause = {},
                     .hint = "Give the folder that holds config.json and *.safetensors"});
    }
    if (!is_model_id(folder_or_id)) {
        throw Error(ErrorKind::Config,
                    {.what = fmt::format("target not found: {} is neither an existing folder nor "
                                         "an id ORG/NAME",
                                         quote(folder_or_id)),
                     .where = fs::current_path(error).string(),
                     .cause = {},
                     .hint = "Check the path, or give an id such as Qwen/Qwen3-8B"});
    }

    const std::vector<fs::path> roots = cache_roots();
    for (const fs::path& root : roots) {
        const fs::path model = root / folder_of_id(folder_or_id);
        if (!fs::is_directory(model, error)) {
            continue;
        }
        const std::string revision = first_line(model / "refs" / "main");
        const bool plain =
            !revision.empty() && std::all_of(revision.begin(), revision.end(), [](char c) {
                return std::isalnum(static_cast<unsigned char>(c)) != 0;
            });
        const fs::path snapshot = model / "snapshots" / revision;
        if (!plain || !fs::is_directory(snapshot, error)) {
            throw Error(
                ErrorKind::Config,
                {.what = fmt::format(
                     "target {} is not complete in the cache: {}",
                     folder_or_id,
                     plain ? fmt::format("revision {} of refs/main has no snapshot", revision)
                           : "refs/main names no revision"),
                 .where = model.string(),
                 .cause = {},
                 .hint = fmt::format("Run `hf download {}`, or give a folder below snapshots/ "
                                     "with --target",
                                     folder_or_id)});
        }
        return {
            .folder = snapshot.string(), .name = short_name(folder_or_id), .revision = revision};
    }
    fail_not_found(folder_or_id, roots);
}

}  // namespace dflash::target
