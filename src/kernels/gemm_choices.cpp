// SPDX-License-Identifier: Apache-2.0
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

}  // namespace

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

std::optional<GemmAlgorithm> GemmChoices::find(const GemmShape& shape) const {
    const std::string key = gemm_class(shape).id();
    const std::lock_guard lock(mutex_);
    const auto found = choices_.find(key);
    return found == choices_.end() ? std::nullopt : std::optional(found->second.algorithm);
}

GemmAlgorithm GemmChoices::choose(const GemmShape& shape, const std::function<GemmChoice()>& time) {
    const std::lock_guard choosing(choosing_);
    if (const std::optional<GemmAlgorithm> known = find(shape)) {
        return *known;
    }
    const GemmChoice choice = time();
    const std::lock_guard lock(mutex_);
    choices_[gemm_class(shape).id()] = choice;
    num_timed_ += 1;
    return choice.algorithm;
}

std::int64_t GemmChoices::num_timed() const {
    const std::lock_guard lock(mutex_);
    return num_timed_;
}

std::int64_t GemmChoices::size() const {
    const std::lock_guard lock(mutex_);
    return static_cast<std::int64_t>(choices_.size());
}

std::string GemmChoices::to_text() const {
    std::vector<std::pair<std::string, io::Json>> products;
    {
        const std::lock_guard lock(mutex_);
        for (const auto& [key, choice] : choices_) {
            products.emplace_back(
                key,
                io::Json::object(
                    {{"code", io::Json::string(code_text(choice.algorithm))},
                     {"workspace", io::Json::integer(choice.algorithm.workspace_bytes)},
                     {"ms", io::Json::number(choice.ms)}}));
        }
    }
    return io::Json::object({{"format", io::Json::integer(kFormat)},
                             {"gpu", io::Json::string(gpu_)},
                             {"cublaslt", io::Json::string(library_)},
                             {"products", io::Json::object(std::move(products))}})
               .dump_pretty() +
           "\n";
}

bool GemmChoices::read(std::string_view text, std::string_view where) {
    const io::Json json = io::Json::parse(text, where);
    const std::string place(where);
    if (json.require_integer("format", where) != kFormat ||
        json.require_string("gpu", where) != gpu_ ||
        json.require_string("cublaslt", where) != library_) {
        return false;
    }
    const io::Json* const products = json.find("products");
    if (products == nullptr || !products->is_object()) {
        throw Error(ErrorKind::Data,
                    {.what = "products: expected an object",
                     .where = place,
                     .cause = {},
                     .hint = "Delete the file; products are timed again"});
    }
    std::map<std::string, GemmChoice, std::less<>> choices;
    for (const auto& [key, product] : products->members()) {
        choices[key] = {algorithm_of(product, place), product.require_number("ms", where)};
    }
    const std::lock_guard lock(mutex_);
    choices_ = std::move(choices);
    num_timed_ = 0;
    return true;
}

void GemmChoices::load_from(const std::string& folder) {
    const std::string path = fmt::format("{}/{}.json", folder, name());
    std::error_code error;
    if (!std::filesystem::exists(path, error)) {
        return;
    }
    try {
        if (!read(io::read_json_file(path).dump(), path)) {
            log_info("{} is for another build of cuBLASLt; products are timed again", path);
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
        std::filesystem::create_directories(folder);
        io::write_file_atomically(fmt::format("{}/{}.json", folder, name()), to_text());
    } catch (const std::exception& failure) {
        log_warning("the choice of products' algorithms is not kept: {}", failure.what());
    }
}

}  // namespace dflash::kernels
