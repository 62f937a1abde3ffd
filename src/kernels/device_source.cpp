// SPDX-License-Identifier: Apache-2.0
// Includes are found by reading lines, not by a preprocessor: conditions around them are ignored,
// so that the files found are at least those that any instance reads.
#include "embedded_sources.hpp"

#include <dflash/core/error.hpp>
#include <dflash/core/log.hpp>
#include <dflash/io/mapped_file.hpp>
#include <dflash/kernels/device_source.hpp>
#include <dflash/kernels/kernel_error.hpp>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fmt/format.h>
#include <optional>
#include <string_view>
#include <system_error>

namespace dflash::kernels {
namespace {

SourceSet read_folder(const std::string& folder) {
    SourceSet sources;
    std::error_code error;
    for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
        const std::string extension = entry.path().extension().string();
        if (entry.is_regular_file() && (extension == ".cu" || extension == ".cuh")) {
            const io::MappedFile file(entry.path().string());
            sources.set(entry.path().filename().string(), std::string(file.text()));
        }
    }
    if (sources.files().empty()) {
        throw Error(ErrorKind::Config,
                    {.what = "DFLASH_KERNEL_DIR names a folder without *.cu files",
                     .where = folder,
                     .cause = error ? error.message() : "",
                     .hint = "Unset it to use the kernels that are built into the program"});
    }
    return sources;
}

std::string_view skip_blanks(std::string_view text) {
    text.remove_prefix(std::min(text.find_first_not_of(" \t"), text.size()));
    return text;
}

// The file name of a line `#include "name"`.
std::optional<std::string> included_name(std::string_view line) {
    line = skip_blanks(line);
    if (!line.starts_with('#')) {
        return std::nullopt;
    }
    line = skip_blanks(line.substr(1));
    constexpr std::string_view kInclude = "include";
    if (!line.starts_with(kInclude)) {
        return std::nullopt;
    }
    line = skip_blanks(line.substr(kInclude.size()));
    if (!line.starts_with('"')) {
        return std::nullopt;
    }
    return std::string(line.substr(1, line.find('"', 1) - 1));
}

std::vector<std::string> included_names(std::string_view text) {
    std::vector<std::string> names;
    while (!text.empty()) {
        const std::size_t end = std::min(text.find('\n'), text.size());
        if (auto name = included_name(text.substr(0, end))) {
            names.push_back(std::move(*name));
        }
        text.remove_prefix(std::min(end + 1, text.size()));
    }
    return names;
}

}  // namespace

SourceSet SourceSet::embedded() {
    if (const char* folder = std::getenv("DFLASH_KERNEL_DIR")) {
        log_warning("DFLASH_KERNEL_DIR is set: kernels are built from {}, not from the program",
                    folder);
        return read_folder(folder);
    }
    SourceSet sources;
    for (const EmbeddedFile& file : embedded_files()) {
        sources.set(std::string(file.name), std::string(file.text));
    }
    return sources;
}

const std::string* SourceSet::find(const std::string& name) const {
    const auto found = files_.find(name);
    return found == files_.end() ? nullptr : &found->second;
}

std::vector<std::string> SourceSet::reachable(const std::string& name) const {
    // Breadth first; the list is also the queue.
    std::vector<std::string> names{name};
    std::map<std::string, std::string> mentions;  // included file -> the one that includes it
    for (std::size_t i = 0; i < names.size(); ++i) {
        const std::string current = names[i];
        const std::string* text = find(current);
        if (text == nullptr) {
            const auto mention = mentions.find(current);
            throw KernelError(
                KernelFault::Source,
                {.what = fmt::format("the device source {} is not part of the program", current),
                 .where = mention == mentions.end() ? "" : "included by " + mention->second,
                 .cause = {},
                 .hint = {}});
        }
        for (const std::string& included : included_names(*text)) {
            if (std::find(names.begin(), names.end(), included) == names.end()) {
                names.push_back(included);
                mentions.emplace(included, current);
            }
        }
    }
    return names;
}

}  // namespace dflash::kernels
