// SPDX-License-Identifier: Apache-2.0
#include <dflash/core/check.hpp>
#include <dflash/core/error.hpp>
#include <dflash/core/log.hpp>
#include <dflash/io/atomic_file.hpp>
#include <dflash/io/json.hpp>
#include <dflash/kernels/gemm_choices.hpp>

#include <algorithm>
#include <bit>
#include <cctype>
#include <charconv>
#include <filesystem>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <system_error>
#include <utility>
#include <vector>

namespace dflash::kernels {
namespace {

constexpr int kFormat = 1;

std::string code_text(const GemmAlgorithm& algorithm) {
    return fmt::format("{:016x}", fmt::join(algorithm.code, " "));
}

GemmAlgorithm algorithm_of(const io::Json& json, const std::string& where) {
    GemmAlgorithm algorithm;
    algorithm.workspace_bytes = json.require_integer("workspace", where);
    const std::string text = json.require_string("code", where);
    const char* next = text.data();
    const char* const end = next + text.size();
    for (std::uint64_t& word : algorithm.code) {
        const auto [stop, error] = std::from_chars(next, end, word, 16);
        if (error != std::errc()) {
            throw Error(
                ErrorKind::Data,
                {.what = fmt::format("code: got '{}', expected eight hexadecimal numbers", text),
                 .where = where,
                 .cause = {},
                 .hint = "Delete the file; products are timed again"});
        }
        next = stop == end ? end : stop + 1;
    }
    return algorithm;
}

// The times are for readers: nothing depends on them.
io::Json choice_json(const GemmChoice& choice) {
    io::Json json = io::Json::object();
    if (choice.algorithm) {
        json.set("code", io::Json::string(code_text(*choice.algorithm)));
        json.set("workspace", io::Json::integer(choice.algorithm->workspace_bytes));
    }
    json.set("ms", io::Json::number(choice.ms));
    json.set("guess_ms", io::Json::number(choice.guess_ms));
    return json;
}

}  // namespace

std::vector<std::string> changed_choices(const GemmChoiceMap& before, const GemmChoiceMap& now) {
    std::vector<std::string> changed;
    for (const auto& [key, choice] : now) {
        const auto found = before.find(key);
        if (found == before.end() || found->second.algorithm != choice.algorithm) {
            changed.push_back(key);
        }
    }
    return changed;
}

io::Json to_json(const GemmChoiceMap& choices) {
    std::vector<std::pair<std::string, io::Json>> products;
    for (const auto& [key, choice] : choices) {
        products.emplace_back(key, choice_json(choice));
    }
    return io::Json::object(std::move(products));
}

GemmChoiceMap choices_from_json(const io::Json& json, std::string_view where) {
    const std::string place(where);
    if (!json.is_object()) {
        throw Error(ErrorKind::Data,
                    {.what = "products: expected an object",
                     .where = place,
                     .cause = {},
                     .hint = "Delete the file; products are timed again"});
    }
    GemmChoiceMap choices;
    for (const auto& [key, product] : json.members()) {
        GemmChoice& choice = choices[key];
        if (product.find("code") != nullptr) {
            choice.algorithm = algorithm_of(product, place);
        }
        choice.ms = product.require_number("ms", where);
        choice.guess_ms = product.require_number("guess_ms", where);
    }
    return choices;
}

GemmShape gemm_class(const GemmShape& shape) {
    GemmShape result = shape;
    std::int64_t& rows = shape.a_transposed ? result.k : result.m;
    rows = static_cast<std::int64_t>(
        std::bit_ceil(static_cast<std::uint64_t>(std::max(rows, kFewestGemmRows))));
    return result;
}

GemmChoices::GemmChoices(std::string gpu, std::string library)
    : gpu_(std::move(gpu)), library_(std::move(library)) {}

std::string GemmChoices::name() const {
    std::string name = gpu_;
    std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) {
        return std::isalnum(c) != 0 ? static_cast<char>(std::tolower(c)) : '-';
    });
    return name;
}

std::string GemmChoices::path_in(const std::string& folder) const {
    return fmt::format("{}/{}.json", folder, name());
}

std::optional<GemmChoice> GemmChoices::find(const GemmShape& shape) const {
    const std::string key = gemm_class(shape).id();
    const std::lock_guard lock(mutex_);
    const auto found = choices_.find(key);
    if (found == choices_.end()) {
        return std::nullopt;
    }
    used_.insert(key);
    return found->second;
}

void GemmChoices::choose(
    const std::vector<GemmShape>& shapes,
    const std::function<std::vector<GemmChoice>(const std::vector<GemmShape>&)>& time) {
    // Held for as long as it takes: whoever comes second takes over what the first has found.
    const std::lock_guard choosing(choosing_);
    std::vector<GemmShape> open;
    std::set<std::string> keys;
    for (const GemmShape& shape : shapes) {
        if (!find(shape) && keys.insert(gemm_class(shape).id()).second) {
            open.push_back(shape);
        }
    }
    if (open.empty()) {
        return;
    }
    const std::vector<GemmChoice> chosen = time(open);
    DFLASH_CHECK(
        chosen.size() == open.size(), "{} choices for {} products", chosen.size(), open.size());
    const std::lock_guard lock(mutex_);
    for (std::size_t i = 0; i < open.size(); ++i) {
        const std::string key = gemm_class(open[i]).id();
        choices_[key] = chosen[i];
        used_.insert(key);
        timed_.insert(key);
    }
}

std::int64_t GemmChoices::num_timed() const {
    const std::lock_guard lock(mutex_);
    return static_cast<std::int64_t>(timed_.size());
}

std::int64_t GemmChoices::size() const {
    const std::lock_guard lock(mutex_);
    return static_cast<std::int64_t>(choices_.size());
}

GemmChoiceMap GemmChoices::used() const {
    const std::lock_guard lock(mutex_);
    GemmChoiceMap result;
    for (const std::string& key : used_) {
        result.emplace(key, choices_.at(key));
    }
    return result;
}

std::string GemmChoices::to_text() const {
    const std::lock_guard lock(mutex_);
    return io::Json::object({{"format", io::Json::integer(kFormat)},
                             {"gpu", io::Json::string(gpu_)},
                             {"cublaslt", io::Json::string(library_)},
                             {"products", to_json(choices_)}})
               .dump_pretty() +
           "\n";
}

void GemmChoices::add(const GemmChoiceMap& choices) {
    const std::lock_guard lock(mutex_);
    choices_.insert(choices.begin(), choices.end());
}

bool GemmChoices::read(std::string_view text, std::string_view where) {
    const io::Json json = io::Json::parse(text, where);
    if (json.require_integer("format", where) != kFormat ||
        json.require_string("gpu", where) != gpu_ ||
        json.require_string("cublaslt", where) != library_) {
        return false;
    }
    const io::Json* const products = json.find("products");
    add(choices_from_json(products == nullptr ? io::Json() : *products, where));
    return true;
}

void GemmChoices::load_from(const std::string& folder) {
    const std::string path = path_in(folder);
    std::error_code error;
    if (!std::filesystem::exists(path, error)) {
        return;
    }
    try {
        if (!read(io::read_json_file(path).dump(), path)) {
            log_warning(
                "{} is for another GPU or another build of cuBLASLt; products are timed "
                "again",
                path);
        }
    } catch (const Error& failure) {
        log_warning("{}: {}; products are timed again", path, failure.what());
    }
}

void GemmChoices::save_to(const std::string& folder) const {
    if (num_timed() == 0) {
        return;
    }
    try {
        GemmChoices all(gpu_, library_);
        const std::string path = path_in(folder);
        try {
            // Another process may have written it since it was read; what stands there stays.
            if (std::filesystem::exists(path)) {
                all.read(io::read_json_file(path).dump(), path);
            }
        } catch (const Error&) {
            // Damaged, as was said when it was read: written anew.
        }
        {
            const std::lock_guard lock(mutex_);
            for (const std::string& key : timed_) {
                all.add({{key, choices_.at(key)}});
            }
        }
        std::filesystem::create_directories(folder);
        io::write_file_atomically(path, all.to_text());
    } catch (const std::exception& failure) {
        log_warning("the choice of products' algorithms is not kept: {}", failure.what());
    }
}

}  // namespace dflash::kernels
