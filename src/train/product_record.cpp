// SPDX-License-Identifier: Apache-2.0
#include <dflash/core/error.hpp>
#include <dflash/core/sha256.hpp>
#include <dflash/io/json.hpp>
#include <dflash/train/product_record.hpp>

#include <algorithm>
#include <filesystem>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <system_error>
#include <utility>

namespace dflash::train {
namespace fs = std::filesystem;

namespace {

constexpr int kFormat = 1;
constexpr std::size_t kMostNamed = 3;  // products that a line names

std::string name_of(const GpuProducts& products) {
    return fmt::format("{} with cuBLASLt {}", products.gpu, products.library);
}

std::vector<std::string> names_of(const ProductRecord& record) {
    std::vector<std::string> names;
    for (const GpuProducts& products : record.gpus) {
        names.push_back(name_of(products));
    }
    std::sort(names.begin(), names.end());
    return names;
}

const GpuProducts* find_same(const ProductRecord& record, const GpuProducts& products) {
    const auto found =
        std::find_if(record.gpus.begin(), record.gpus.end(), [&](const GpuProducts& other) {
            return other.gpu == products.gpu && other.library == products.library;
        });
    return found == record.gpus.end() ? nullptr : &*found;
}

std::string describe_way(const std::string& way) {
    return way == "torch" ? "by LibTorch" : fmt::format("{} by cuBLASLt", way);
}

/// A record of the same way that shares a model of GPU with `now`, cut to the classes that both
/// have.
std::optional<ProductRecord> comparable(ProductRecord before, const ProductRecord& now) {
    if (before.way != now.way) {
        return std::nullopt;
    }
    std::erase_if(before.gpus, [&](const GpuProducts& products) {
        return std::none_of(now.gpus.begin(), now.gpus.end(), [&](const GpuProducts& other) {
            return other.gpu == products.gpu;
        });
    });
    for (GpuProducts& products : before.gpus) {
        if (const GpuProducts* const same = find_same(now, products)) {
            std::erase_if(products.choices, [&](const auto& choice) {
                return !same->choices.contains(choice.first);
            });
        }
    }
    return before.empty() ? std::nullopt : std::optional(std::move(before));
}

}  // namespace

std::string ProductRecord::to_text() const {
    std::vector<io::Json> list;
    for (const GpuProducts& products : gpus) {
        list.push_back(io::Json::object({{"gpu", io::Json::string(products.gpu)},
                                         {"cublaslt", io::Json::string(products.library)},
                                         {"products", kernels::to_json(products.choices)}}));
    }
    return io::Json::object({{"format", io::Json::integer(kFormat)},
                             {"way", io::Json::string(way)},
                             {"id", io::Json::string(id())},
                             {"gpus", io::Json::array(std::move(list))}})
               .dump_pretty() +
           "\n";
}

ProductRecord ProductRecord::parse(std::string_view text, std::string_view where) {
    const auto refuse = [&](std::string what) {
        throw Error(
            ErrorKind::Data,
            {.what = std::move(what), .where = std::string(where), .cause = {}, .hint = {}});
    };
    const io::Json json = io::Json::parse(text, where);
    if (const std::int64_t format = json.require_integer("format", where); format != kFormat) {
        refuse(fmt::format("format: got {}, expected {}", format, kFormat));
    }
    ProductRecord record;
    record.way = json.require_string("way", where);
    const io::Json* const gpus = json.find("gpus");
    if (gpus == nullptr || !gpus->is_array()) {
        refuse("gpus: expected a list");
    }
    for (const io::Json& gpu : gpus->items()) {
        const io::Json* const products = gpu.find("products");
        record.gpus.push_back({.gpu = gpu.require_string("gpu", where),
                               .library = gpu.require_string("cublaslt", where),
                               .choices = kernels::choices_from_json(
                                   products == nullptr ? io::Json() : *products, where)});
    }
    return record;
}

std::string ProductRecord::id() const {
    // Without the times, which differ whenever something is timed.
    Sha256 hash;
    hash.add_field(way);
    for (const GpuProducts& products : gpus) {
        hash.add_field(products.gpu);
        hash.add_field(products.library);
        for (const auto& [key, choice] : products.choices) {
            hash.add_field(key);
            hash.add_field(choice.algorithm
                               ? fmt::format("{:x}", fmt::join(choice.algorithm->code, " "))
                               : std::string());
        }
    }
    return hash.finish().substr(0, 12);
}

std::vector<std::string> product_changes(const ProductRecord& before, const ProductRecord& now) {
    const std::string way_before = before.empty() ? "torch" : before.way;
    // Runs of older programs left products to LibTorch and kept nothing.
    if (before.empty() && (now.empty() || now.way == "torch")) {
        return {};
    }
    if (now.empty()) {
        return {fmt::format("products: {} on {} before, on the CPU now",
                            describe_way(way_before),
                            fmt::join(names_of(before), " and "))};
    }
    if (way_before != now.way) {
        return {fmt::format("products: {} before{}, {} now",
                            describe_way(way_before),
                            before.empty() ? " (there is no record of another way)" : "",
                            describe_way(now.way))};
    }
    std::vector<std::string> lines;
    if (names_of(before) != names_of(now)) {
        lines.push_back(fmt::format("products: on {} before, on {} now",
                                    fmt::join(names_of(before), " and "),
                                    fmt::join(names_of(now), " and ")));
    }
    for (const GpuProducts& products : now.gpus) {
        const GpuProducts* const same = find_same(before, products);
        if (same == nullptr) {
            continue;
        }
        const std::vector<std::string> changed =
            kernels::changed_choices(same->choices, products.choices);
        if (!changed.empty()) {
            const std::size_t named = std::min(changed.size(), kMostNamed);
            lines.push_back(fmt::format(
                "products: {} of {} have another algorithm on {} than before: {}{}",
                changed.size(),
                products.choices.size(),
                products.gpu,
                fmt::join(
                    changed.begin(), changed.begin() + static_cast<std::ptrdiff_t>(named), ", "),
                changed.size() > named ? fmt::format(" and {} more", changed.size() - named) : ""));
        }
    }
    return lines;
}

std::optional<NeighbourProducts> find_neighbour_products(const std::string& run_folder,
                                                         const ProductRecord& now) {
    std::error_code error;
    fs::path own = fs::absolute(run_folder, error).lexically_normal();
    if (!own.has_filename()) {
        own = own.parent_path();  // "runs/a/" is "runs/a"
    }
    std::vector<std::pair<fs::file_time_type, fs::path>> files;
    for (fs::directory_iterator entry(own.parent_path(), error), end; !error && entry != end;
         entry.increment(error)) {
        std::error_code none;
        const fs::path file = entry->path() / "products.json";
        const fs::file_time_type time = fs::last_write_time(file, none);
        if (!none && !entry->is_symlink(none) && entry->path().lexically_normal() != own) {
            files.emplace_back(time, file);
        }
    }
    std::sort(files.rbegin(), files.rend());
    for (const auto& [time, file] : files) {
        try {
            const std::string path = file.string();
            if (auto record =
                    comparable(ProductRecord::parse(io::read_json_file(path).dump(), path), now)) {
                return NeighbourProducts{file.parent_path().string(), std::move(*record)};
            }
        } catch (const Error&) {
            // Another run's file, which is nothing to this one.
        }
    }
    return std::nullopt;
}

}  // namespace dflash::train
