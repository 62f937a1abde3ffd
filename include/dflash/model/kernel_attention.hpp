// SPDX-License-Identifier: Apache-2.0
// Attention by the kernels of dflash/kernels/attention.hpp: the only path of GPUs.
#pragma once

#include <dflash/kernels/attention.hpp>
#include <dflash/model/attention.hpp>
#include <dflash/model/config.hpp>

#include <vector>

namespace dflash::model {

/// bf16 tensors on one CUDA device. Keeps the schedules of the current row and 16 bytes for every
/// row of queries; that memory only grows.
class KernelAttention final : public BlockAttention {
  public:
    /// For the layers of `config` on `device`, a GPU of that architecture.
    KernelAttention(const DraftConfig& config,
                    at::Device device,
                    const kernels::Architecture& architecture,
                    const kernels::FindKernel& find_kernel);
    ~KernelAttention() override;

    void set_row(const data::BlockPlan& blocks, std::int64_t num_tokens) override;

    /// Internal error for a mask that no layer of the configuration has.
    void forward(const AttentionInputs& in,
                 const AttentionMask& mask,
                 const AttentionOutputs& out) override;

    void backward(const AttentionInputs& in,
                  const AttentionMask& mask,
                  const AttentionOutputs& result,
                  const at::Tensor& do_MQd,
                  const AttentionGradients& out) override;

  private:
    struct LayerKind;
    const LayerKind& kind_of(const AttentionMask& mask) const;

    at::Device device_;
    std::vector<LayerKind> kinds_;
    at::Tensor schedules_;  // int32: room for those of all kinds, of any row of the largest size
    at::Tensor row_terms_;  // bytes
};

}  // namespace dflash::model
