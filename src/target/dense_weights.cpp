// SPDX-License-Identifier: Apache-2.0
#include "dense_weights.hpp"

#include <dflash/core/check.hpp>
#include <dflash/core/error.hpp>
#include <dflash/tensor/bridge.hpp>

#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <string>

namespace dflash::target {
namespace {

// A piece is converted before it travels to a device: the most that loading holds besides the
// weights.
constexpr Bytes kPieceBytes = 64 << 20;

// Copies a stored matrix or vector into `destination`, in pieces of whole rows.
void copy_stored(const Checkpoint& files, const std::string& name, const at::Tensor& destination) {
    const io::TensorView& view = files.at(name);
    const std::string where = files.where(name);
    const std::int64_t rows = view.shape[0];
    const auto row_bytes = static_cast<Bytes>(view.data.size()) / rows;
    const std::int64_t rows_per_piece = std::max<std::int64_t>(1, kPieceBytes / row_bytes);
    for (std::int64_t begin = 0; begin < rows; begin += rows_per_piece) {
        const std::int64_t count = std::min(rows_per_piece, rows - begin);
        io::TensorView piece = view;
        piece.shape[0] = count;
        piece.data = view.data.subspan(static_cast<std::size_t>(begin * row_bytes),
                                       static_cast<std::size_t>(count * row_bytes));
        const at::Tensor loaded = destination.narrow(0, begin, count);
        tensor::load_into(piece, loaded, where);
        // The sum shows it without a mask as large as the weight.
        if (!std::isfinite(loaded.sum(at::kFloat).item<float>())) {
            throw Error(ErrorKind::Data,
                        {.what = fmt::format("{}: got a value that is not finite in rows {} to {}, "
                                             "expected numbers",
                                             name,
                                             begin,
                                             begin + count - 1),
                         .where = where,
                         .cause = {},
                         .hint = "The file is damaged or its training failed; fetch it again"});
        }
    }
}

// Several stored matrices of one layer as one, their rows in the order given.
at::Tensor load_stacked(const Checkpoint& files,
                        std::int64_t layer,
                        std::initializer_list<const char*> parts,
                        at::TensorOptions options) {
    std::int64_t rows = 0;
    std::int64_t columns = 0;
    for (const char* part : parts) {
        const io::TensorView& view = files.at(layer_weight_name(layer, part));
        rows += view.shape[0];
        columns = view.shape[1];
    }
    at::Tensor stacked = at::empty({rows, columns}, options);
    std::int64_t begin = 0;
    for (const char* part : parts) {
        const std::string name = layer_weight_name(layer, part);
        const std::int64_t count = files.at(name).shape[0];
        copy_stored(files, name, stacked.narrow(0, begin, count));
        begin += count;
    }
    return stacked;
}

}  // namespace

void DenseWeights::for_each(const std::function<void(at::Tensor&)>& visit) {
    const auto visit_if_there = [&](at::Tensor& tensor) {
        if (tensor.defined()) {
            visit(tensor);
        }
    };
    visit_if_there(embed_VH);
    for (DenseLayerWeights& layer : layers) {
        for (at::Tensor* tensor : {&layer.input_norm_H,
                                   &layer.qkv_QKKH,
                                   &layer.q_norm_D,
                                   &layer.k_norm_D,
                                   &layer.out_HQ,
                                   &layer.mlp_norm_H,
                                   &layer.gate_up_IIH,
                                   &layer.down_HI}) {
            visit_if_there(*tensor);
        }
    }
    visit_if_there(final_norm_H);
    visit_if_there(head_VH);
}

Bytes DenseWeights::bytes() const {
    DenseWeights copy = *this;
    Bytes sum = 0;
    copy.for_each([&](at::Tensor& tensor) { sum += static_cast<Bytes>(tensor.nbytes()); });
    if (head_VH.defined() && head_VH.is_same(embed_VH)) {
        sum -= static_cast<Bytes>(head_VH.nbytes());
    }
    return sum;
}

at::Tensor load_weight(const Checkpoint& files,
                       const std::string& name,
                       at::Device device,
                       at::ScalarType dtype) {
    at::Tensor tensor =
        at::empty(files.at(name).shape, at::TensorOptions().device(device).dtype(dtype));
    copy_stored(files, name, tensor);
    return tensor;
}

DenseWeights load_dense_weights(const Checkpoint& files,
                                const TargetConfig& config,
                                std::int64_t num_layers,
                                bool with_head,
                                at::Device device,
                                at::ScalarType dtype) {
    const at::TensorOptions options = at::TensorOptions().device(device).dtype(dtype);
    const bool qk_norms = config.family == Family::Qwen3;
    DenseWeights weights;
    weights.embed_VH = load_weight(files, kEmbedName, device, dtype);
    for (std::int64_t l = 0; l < num_layers; ++l) {
        const auto load = [&](const char* part) {
            return load_weight(files, layer_weight_name(l, part), device, dtype);
        };
        weights.layers.push_back({
            .input_norm_H = load("input_layernorm"),
            .qkv_QKKH = load_stacked(
                files, l, {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"}, options),
            .q_norm_D = qk_norms ? load("self_attn.q_norm") : at::Tensor(),
            .k_norm_D = qk_norms ? load("self_attn.k_norm") : at::Tensor(),
            .out_HQ = load("self_attn.o_proj"),
            .mlp_norm_H = load("post_attention_layernorm"),
            .gate_up_IIH = load_stacked(files, l, {"mlp.gate_proj", "mlp.up_proj"}, options),
            .down_HI = load("mlp.down_proj"),
        });
    }
    if (with_head) {
        weights.final_norm_H = load_weight(files, kFinalNormName, device, dtype);
        weights.head_VH = files.head_is_embedding() ? weights.embed_VH
                                                    : load_weight(files, kHeadName, device, dtype);
    }
    return weights;
}

}  // namespace dflash::target
