// SPDX-License-Identifier: Apache-2.0
// Keys and values of the dense decoders.
#pragma once

#include <dflash/target/decode_cache.hpp>

#include <vector>

namespace dflash::target {

/// Row slot x capacity + i holds token i of a slot. One row more than that is there for tokens of
/// nobody (see DecodeStep).
class DenseCache final : public DecodeCache {
  public:
    DenseCache(std::int64_t slots,
               std::int64_t capacity,
               std::int64_t num_layers,
               std::int64_t num_kv_heads,
               std::int64_t head_dim,
               at::TensorOptions options)
        : DecodeCache(slots, capacity) {
        for (std::int64_t layer = 0; layer < num_layers; ++layer) {
            for (std::vector<at::Tensor>* tensors : {&keys_RGD_, &values_RGD_}) {
                tensors->push_back(
                    at::empty({slots * capacity + 1, num_kv_heads, head_dim}, options));
            }
        }
    }

    /// Keys of a layer, [slots x capacity + 1, heads, D].
    const at::Tensor& keys_RGD(std::size_t layer) const { return keys_RGD_.at(layer); }

    const at::Tensor& values_RGD(std::size_t layer) const { return values_RGD_.at(layer); }

    std::size_t num_layers() const { return keys_RGD_.size(); }

    Bytes bytes() const override {
        Bytes sum = 0;
        for (const std::vector<at::Tensor>* tensors : {&keys_RGD_, &values_RGD_}) {
            for (const at::Tensor& tensor : *tensors) {
                sum += static_cast<Bytes>(tensor.nbytes());
            }
        }
        return sum;
    }

  private:
    std::vector<at::Tensor> keys_RGD_;
    std::vector<at::Tensor> values_RGD_;
};

}  // namespace dflash::target
