// SPDX-License-Identifier: Apache-2.0
#include <dflash/core/check.hpp>
#include <dflash/model/kernel_attention.hpp>
#include <dflash/tensor/bridge.hpp>

#include <algorithm>
#include <span>
#include <vector>

namespace dflash::model {
namespace {

kernels::HeadTensor heads(const at::Tensor& x_RND) {
    tensor::expect_dtype(x_RND, at::kBFloat16, "tensor of the attention kernels");
    DFLASH_CHECK(x_RND.stride(2) == 1, "heads with a stride of {}", x_RND.stride(2));
    return {x_RND.data_ptr(), x_RND.stride(0), x_RND.stride(1)};
}

kernels::AttentionInputTensors heads(const AttentionInputs& in) {
    return {.q = heads(in.q_MQd),
            .k_context = heads(in.k_context_TKd),
            .v_context = heads(in.v_context_TKd),
            .k_block = heads(in.k_block_MKd),
            .v_block = heads(in.v_block_MKd)};
}

kernels::AttentionResultTensors heads(const AttentionOutputs& result) {
    tensor::expect_dtype(result.lse_MQ, at::kFloat, "log-sum-exp");
    return {.o = heads(result.o_MQd),
            .o_rest = heads(result.o_rest_MQd),
            .lse_MQ = result.lse_MQ.data_ptr<float>()};
}

kernels::AttentionGradientTensors heads(const AttentionGradients& out) {
    return {.dq = heads(out.dq_MQd),
            .dk_context = heads(out.dk_context_TKd),
            .dv_context = heads(out.dv_context_TKd),
            .dk_block = heads(out.dk_block_MKd),
            .dv_block = heads(out.dv_block_MKd)};
}

}  // namespace

/// Layers with one mask: their kernels, and the current row's schedule for them.
struct KernelAttention::LayerKind {
    AttentionMask mask;
    kernels::AttentionKernels kernels;
    kernels::AttentionSchedule schedule;
    kernels::AttentionProblem problem;  // points to the schedule
};

KernelAttention::KernelAttention(const DraftConfig& config,
                                 at::Device device,
                                 const kernels::Architecture& architecture,
                                 const kernels::FindKernel& find_kernel)
    : device_(device) {
    const std::int64_t group = div_exact(config.num_heads, config.num_kv_heads);
    for (std::int64_t layer = 0; layer < config.num_layers(); ++layer) {
        const AttentionMask mask{config.causal(layer), config.window(layer)};
        const auto same = [&](const LayerKind& kind) { return kind.mask == mask; };
        if (std::any_of(kinds_.begin(), kinds_.end(), same)) {
            continue;
        }
        LayerKind kind;
        kind.mask = mask;
        kind.problem.shape = {.head_dim = narrow<int>(config.head_dim),
                              .group = narrow<int>(group),
                              .block_size = narrow<int>(config.block_size),
                              .causal = mask.causal,
                              .windowed = mask.window > 0};
        kind.problem.num_key_heads = config.num_kv_heads;
        kind.problem.window = mask.window;
        const std::vector<kernels::KernelSpec> specs =
            kernels::attention_kernels(kind.problem.shape, architecture);
        kind.kernels = {.forward = find_kernel(specs.at(0)),
                        .row_terms = find_kernel(specs.at(1)),
                        .context_gradient = find_kernel(specs.at(2)),
                        .query_gradient = find_kernel(specs.at(3))};
        kinds_.push_back(std::move(kind));
    }
}

KernelAttention::~KernelAttention() = default;

void KernelAttention::set_row(const data::BlockPlan& blocks, std::int64_t num_tokens) {
    std::vector<std::int32_t> all;
    std::vector<std::size_t> begins;
    for (LayerKind& kind : kinds_) {
        kind.schedule = kernels::make_attention_schedule(
            kind.problem.shape, blocks.anchors, blocks.context_begin, num_tokens, kind.mask.window);
        const std::vector<std::int32_t> packed = kind.schedule.packed();
        all.resize((all.size() + 3) / 4 * 4);  // every schedule begins at 16 bytes
        begins.push_back(all.size());
        all.insert(all.end(), packed.begin(), packed.end());
    }
    // Room for any row of this size: rows of many short documents have longer lists than the row
    // that training begins with, and it must not allocate later.
    const std::int64_t room =
        std::ssize(kinds_) * (3 + kernels::AttentionSchedule::largest_packed_size(
                                      std::ssize(blocks.anchors), num_tokens));
    DFLASH_CHECK(std::ssize(all) <= room, "schedules of {}, room for {}", all.size(), room);
    if (!schedules_.defined() || schedules_.numel() < room) {
        schedules_ = at::empty({room}, at::TensorOptions(device_).dtype(at::kInt));
    }
    tensor::upload_into(schedules_.narrow(0, 0, std::ssize(all)), all);
    for (std::size_t i = 0; i < kinds_.size(); ++i) {
        kinds_[i].problem.schedule = &kinds_[i].schedule;
        kinds_[i].problem.device_schedule = schedules_.data_ptr<std::int32_t>() + begins[i];
    }
}

void KernelAttention::forward(const AttentionInputs& in,
                              const AttentionMask& mask,
                              const AttentionOutputs& out) {
    const LayerKind& kind = kind_of(mask);
    kernels::attention_forward(
        kind.kernels, kind.problem, heads(in), heads(out), tensor::current_stream(device_));
}

void KernelAttention::backward(const AttentionInputs& in,
                               const AttentionMask& mask,
                               const AttentionOutputs& result,
                               const at::Tensor& do_MQd,
                               const AttentionGradients& out) {
    const LayerKind& kind = kind_of(mask);
    const std::int64_t bytes =
        kernels::attention_row_terms_bytes(in.q_MQd.size(0), in.q_MQd.size(1));
    if (!row_terms_.defined() || row_terms_.numel() < bytes) {
        row_terms_ = at::Tensor();  // give the old memory back before asking for more
        row_terms_ = at::empty({bytes}, at::TensorOptions(device_).dtype(at::kByte));
    }
    kernels::attention_backward(kind.kernels,
                                kind.problem,
                                heads(in),
                                heads(result),
                                heads(do_MQd),
                                row_terms_.data_ptr(),
                                heads(out),
                                tensor::current_stream(device_));
}

const KernelAttention::LayerKind& KernelAttention::kind_of(const AttentionMask& mask) const {
    const auto found = std::find_if(
        kinds_.begin(), kinds_.end(), [&](const LayerKind& kind) { return kind.mask == mask; });
    DFLASH_CHECK(found != kinds_.end(),
                 "no layer is causal {} with a window of {}",
                 mask.causal,
                 mask.window);
    return *found;
}

}  // namespace dflash::model
