// SPDX-License-Identifier: Apache-2.0
#include <dflash/core/error.hpp>
#include <dflash/core/scope.hpp>
#include <dflash/core/text.hpp>
#include <dflash/data/data_list.hpp>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <fmt/format.h>
#include <glob.h>
#include <optional>
#include <string_view>
#include <utility>

namespace dflash::data {

namespace {

namespace fs = std::filesystem;

constexpr double kMostWeight = 100;

[[noreturn]] void refuse(std::string what, const std::string& item, std::string hint) {
    throw Error(ErrorKind::Config,
                {.what = std::move(what), .where = item, .cause = {}, .hint = std::move(hint)});
}

bool is_file(const std::string& path) {
    std::error_code ignored;
    return fs::is_regular_file(path, ignored);
}

std::optional<double> number_of(std::string_view text) {
    double value = 0;
    const char* const end = text.data() + text.size();
    const auto parsed = std::from_chars(text.data(), end, value);
    return parsed.ec == std::errc() && parsed.ptr == end ? std::optional(value) : std::nullopt;
}

// "path:0.5"; a path with a colon of its own is a file, or has no number behind it.
DataFile split_weight(const std::string& item) {
    const std::size_t colon = item.rfind(':');
    if (colon == std::string::npos || colon == 0 || is_file(item)) {
        return {item};
    }
    const std::optional<double> weight = number_of(std::string_view(item).substr(colon + 1));
    if (!weight) {
        return {item};
    }
    if (!(*weight > 0 && *weight <= kMostWeight)) {
        refuse(fmt::format("a weight of {}, expected above 0 and at most {}", *weight, kMostWeight),
               item,
               *weight == 0 ? "Leave the file out of the list" : "");
    }
    return {item.substr(0, colon), *weight};
}

std::vector<std::string> files_of(const std::string& path, const std::string& item) {
    std::error_code ignored;
    if (fs::is_directory(path, ignored)) {
        refuse("the data are a folder, expected files",
               item,
               fmt::format("Name its files: --data {}", shell_word(path + "/*.jsonl")));
    }
    if (path.find_first_of("*?[") == std::string::npos || is_file(path)) {
        return {path};
    }
    ::glob_t matches{};
    const ScopeGuard release([&matches] { ::globfree(&matches); });
    std::vector<std::string> files;
    if (::glob(path.c_str(), 0, nullptr, &matches) == 0) {
        for (std::size_t i = 0; i < matches.gl_pathc; ++i) {
            if (is_file(matches.gl_pathv[i])) {
                files.emplace_back(matches.gl_pathv[i]);
            }
        }
    }
    if (files.empty()) {
        refuse("no data file matches the pattern", item, "Check the path");
    }
    std::sort(files.begin(), files.end());  // glob sorts by the locale
    return files;
}

}  // namespace

std::vector<DataFile> parse_data_list(const std::string& list) {
    std::vector<DataFile> files;
    std::size_t begin = 0;
    while (begin <= list.size()) {
        const std::size_t comma = std::min(list.find(',', begin), list.size());
        const std::string item = list.substr(begin, comma - begin);
        begin = comma + 1;
        if (item.empty()) {
            continue;
        }
        const DataFile named = split_weight(item);
        for (std::string& path : files_of(named.path, item)) {
            const std::string whole = fs::absolute(path).lexically_normal().string();
            const bool is_again = std::any_of(files.begin(), files.end(), [&](const DataFile& f) {
                return fs::absolute(f.path).lexically_normal().string() == whole;
            });
            if (is_again) {
                refuse(fmt::format("the data file {} is named twice", path),
                       list,
                       fmt::format("To train on it twice an epoch, give it a weight: {}:2", path));
            }
            files.emplace_back(std::move(path), named.weight);
        }
    }
    return files;
}

}  // namespace dflash::data
