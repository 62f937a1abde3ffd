// SPDX-License-Identifier: Apache-2.0
#include <dflash/core/check.hpp>
#include <dflash/core/random.hpp>
#include <dflash/model/drafter.hpp>
#include <dflash/tensor/bridge.hpp>

#include <algorithm>
#include <atomic>
#include <c10/core/GradMode.h>
#include <thread>

namespace dflash::model {
DraftWeights::DraftWeights(const DraftConfig& config,
                           at::Device device,
                           at::ScalarType compute_dtype,
                           Use use)
    : specs_(weight_specs(config)) {
    const c10::NoGradGuard no_grad;
    std::int64_t total = 0;
    for (const WeightSpec& spec : specs_) {
        offsets_.push_back(total);
        total += spec.num_elements();
    }
    const at::TensorOptions options = at::TensorOptions(device);
    compute_flat_ = at::empty({total}, options.dtype(compute_dtype));
    for (std::int64_t i = 0; i < narrow<std::int64_t>(specs_.size()); ++i) {
        weights_.push_back(view_in(compute_flat_, i));
    }
    if (use == Use::Inference) {
        return;
    }
    gradient_flat_ = at::zeros({total}, options.dtype(tensor::sum_dtype(compute_dtype)));
    for (std::int64_t i = 0; i < narrow<std::int64_t>(specs_.size()); ++i) {
        gradients_.push_back(view_in(gradient_flat_, i));
    }
}

std::int64_t DraftWeights::index(const std::string& name) const {
    const auto found = std::find_if(
        specs_.begin(), specs_.end(), [&](const WeightSpec& spec) { return spec.name == name; });
    DFLASH_CHECK(found != specs_.end(), "no weight {}", name);
    return found - specs_.begin();
}

at::Tensor DraftWeights::view_in(const at::Tensor& flat, std::int64_t i) const {
    const WeightSpec& spec = specs_[narrow<std::size_t>(i)];
    return flat.narrow(0, offsets_[narrow<std::size_t>(i)], spec.num_elements()).view(spec.shape);
}

at::Tensor DraftWeights::joined_in(const at::Tensor& flat,
                                   std::int64_t first,
                                   std::int64_t count) const {
    const std::int64_t columns = specs_[narrow<std::size_t>(first)].shape.back();
    std::int64_t rows = 0;
    for (std::int64_t i = first; i < first + count; ++i) {
        const WeightSpec& spec = specs_[narrow<std::size_t>(i)];
        DFLASH_CHECK(spec.shape.size() == 2 && spec.shape[1] == columns,
                     "{} does not join {}",
                     spec.name,
                     specs_[narrow<std::size_t>(first)].name);
        rows += spec.shape[0];
    }
    return flat.narrow(0, offsets_[narrow<std::size_t>(first)], rows * columns)
        .view({rows, columns});
}

at::Tensor make_initial_weights(const DraftConfig& config, std::uint64_t seed) {
    const c10::NoGradGuard no_grad;
    at::Tensor flat_fp32 = at::empty({num_parameters(config)}, at::kFloat);
    // A piece is a stream of its own, so that threads share one large weight and the values do not
    // depend on how many threads there are.
    constexpr std::int64_t kPiece = 1 << 18;

    struct Piece {
        std::string key;
        float* begin;
        std::int64_t count;
    };

    std::vector<Piece> pieces;
    float* weight = flat_fp32.data_ptr<float>();
    for (const WeightSpec& spec : weight_specs(config)) {
        const std::int64_t count = spec.num_elements();
        if (spec.shape.size() == 1) {
            std::fill_n(weight, count, 1.0F);
        } else {
            for (std::int64_t begin = 0; begin < count; begin += kPiece) {
                pieces.push_back({fmt::format("{}#{}", spec.name, begin / kPiece),
                                  weight + begin,
                                  std::min(kPiece, count - begin)});
            }
        }
        weight += count;
    }

    std::atomic<std::size_t> next = 0;
    const auto fill = [&] {
        for (std::size_t i = next++; i < pieces.size(); i = next++) {
            const Piece& piece = pieces[i];
            RandomStream stream(
                seed, Purpose::Weights, 0, stable_hash(piece.key.data(), piece.key.size()));
            std::generate_n(piece.begin, piece.count, [&] {
                return static_cast<float>(config.initializer_range * stream.normal());
            });
        }
    };
    std::vector<std::thread> threads;
    const std::size_t num_threads =
        std::min<std::size_t>(std::max(1U, std::thread::hardware_concurrency()), pieces.size());
    for (std::size_t i = 1; i < num_threads; ++i) {
        threads.emplace_back(fill);
    }
    fill();
    for (std::thread& thread : threads) {
        thread.join();
    }
    return flat_fp32;
}

}  // namespace dflash::model
