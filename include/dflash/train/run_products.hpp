// SPDX-License-Identifier: Apache-2.0
// The drafter's products of matrices in a run (train.products): who makes them, where choices of
// algorithms come from, and where they are kept.
#pragma once

#include <dflash/core/scope.hpp>
#include <dflash/gpu/device.hpp>
#include <dflash/kernels/tuned_gemm.hpp>
#include <dflash/train/product_record.hpp>

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace dflash::train {

/// Choices for one model of GPU and one cuBLASLt: those that `saved` has for them, and for other
/// classes those of `folder` (empty: none).
std::shared_ptr<kernels::GemmChoices> collect_choices(const std::string& gpu,
                                                      const std::string& library,
                                                      const ProductRecord& saved,
                                                      const std::string& folder);

/// Choices are taken from the checkpoint that a run continues, then from the folder "products" of
/// the cache; what neither has is timed at the start, once for each model of GPU. Must live longer
/// than the drafters. Members may be called from any thread.
class RunProducts : NonCopyable {
  public:
    /// `way`: train.products. `cache_root` may be empty: nothing is kept. `saved`: of the
    /// checkpoint.
    RunProducts(std::string way, const std::string& cache_root, ProductRecord saved = {});

    /// For a drafter on a GPU, on its worker; null: LibTorch makes its products.
    std::shared_ptr<kernels::TunedGemm> make_gemm(const gpu::Device& device);

    /// Whether products are timed on that device: it was the first of its model that asked for a
    /// gemm. The others of the model must meet no product before.
    bool times_on(const gpu::Device& device) const;

    /// Ends the start: keeps what was timed in the cache. What is timed no more gets cuBLASLt's
    /// guess.
    void seal();

    /// Shapes whose product is made by a guess though another way was to be.
    std::int64_t num_unforeseen() const;

    /// Complete once it is sealed. Empty where no drafter has a GPU.
    ProductRecord record() const;

    /// For the start of a run: how products are made, and what timing took. Empty without GPUs.
    std::vector<std::string> to_lines() const;

  private:
    /// Of one model of GPU.
    struct Model {
        std::string gpu;
        std::string library;
        int first_position = 0;
        std::shared_ptr<kernels::GemmChoices> choices;  // null where nothing is timed
        std::vector<std::shared_ptr<kernels::TunedGemm>> gemms;
    };

    Model& model_of(const gpu::Device& device);
    std::string line_of(const Model& model) const;

    const std::string way_;
    const std::string folder_;  // empty: no cache
    const ProductRecord saved_;
    mutable std::mutex mutex_;  // guards: models_
    std::vector<Model> models_;
};

}  // namespace dflash::train
