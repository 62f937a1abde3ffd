// SPDX-License-Identifier: Apache-2.0
// By which algorithms a run makes the drafter's products on GPUs. Another algorithm rounds
// otherwise, so a run keeps this with what it saves, and says when it is not as it was.
#pragma once

#include <dflash/kernels/gemm_choices.hpp>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace dflash::train {

/// On one model of GPU.
struct GpuProducts {
    std::string gpu;                 ///< "NVIDIA H200"
    std::string library;             ///< version and build of cuBLASLt
    kernels::GemmChoiceMap choices;  ///< of the classes that are in use; only of timed products

    bool operator==(const GpuProducts&) const = default;
};

struct ProductRecord {
    std::string way;                ///< train.products; empty: no GPU trains, or nothing is known
    std::vector<GpuProducts> gpus;  ///< one for each model

    bool empty() const { return gpus.empty(); }

    /// The text of products.json.
    std::string to_text() const;

    /// Throws an Error naming `where` for what to_text() does not write.
    static ProductRecord parse(std::string_view text, std::string_view where);

    /// 12 hexadecimal digits: equal where all algorithms are.
    std::string id() const;

    bool operator==(const ProductRecord&) const = default;
};

/// What makes results of `now` equal to those of `before` only to rounding, a line for each reason;
/// empty where the algorithms are the same. Of an empty record nothing is known but that LibTorch
/// made the products, as it did before there were records.
std::vector<std::string> product_changes(const ProductRecord& before, const ProductRecord& now);

/// What a run has written that lies beside `run_folder`.
struct NeighbourProducts {
    std::string run_folder;
    ProductRecord record;
};

/// The newest of the runs beside `run_folder` whose products are made in the same way on a model of
/// GPU that `now` has, too; of it the classes that both have. What cannot be read is passed over.
std::optional<NeighbourProducts> find_neighbour_products(const std::string& run_folder,
                                                         const ProductRecord& now);

}  // namespace dflash::train
