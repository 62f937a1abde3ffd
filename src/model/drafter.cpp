// SPDX-License-Identifier: Apache-2.0
#include "buffer_set.hpp"
#include "float8_head.hpp"
#include "head_loss.hpp"
#include "layer.hpp"
#include "layer_input.hpp"
#include "row_inputs.hpp"
#include "shapes.hpp"

#include <dflash/core/check.hpp>
#include <dflash/kernels/tuned_gemm.hpp>
#include <dflash/model/attention.hpp>
#include <dflash/model/drafter.hpp>
#include <dflash/model/tiled_attention.hpp>
#include <dflash/tensor/bridge.hpp>
#include <dflash/tensor/swiglu.hpp>

#include <algorithm>
#include <c10/core/GradMode.h>
#include <utility>
#include <vector>

namespace dflash::model {
namespace {

/// The fused context: fc over the concatenated features, then hidden_norm; once for all layers.
struct Context {
    at::Tensor fused_TH;        // sum dtype: output of fc
    at::Tensor inverse_rms_T1;  // sum dtype
    at::Tensor context_TH;

    Context(BufferSet& buffers, const Shapes& s)
        : fused_TH(buffers.take("fused", {s.T, s.H}, s.sum)),
          inverse_rms_T1(buffers.take("inverse_rms_fused", {s.T, 1}, s.sum)),
          context_TH(buffers.take("context", {s.T, s.H}, s.compute)) {}
};

/// Final norm of the head's rows.
struct HeadInput {
    at::Tensor inverse_rms_R1;  // sum dtype
    at::Tensor z_RH;

    HeadInput(BufferSet& buffers, const Shapes& s)
        : inverse_rms_R1(buffers.take("inverse_rms_head", {s.R, 1}, s.sum)),
          z_RH(buffers.take("z", {s.R, s.H}, s.compute)) {}
};

constexpr Bytes kFloat8Piece = Bytes{16} << 20;  // of a weight in fp32, or of what it makes

/// Everything that a row of that size takes, in the names of a forward and backward.
void take_all(BufferSet& buffers,
              const DraftConfig& config,
              const Shapes& s,
              std::int64_t chunk,
              std::int64_t recompute_layers) {
    const Context context(buffers, s);
    const RowScratch scratch(
        buffers, s, chunk, RowScratch::Use::Training, /*shared_gate_up=*/recompute_layers > 0);
    for (std::int64_t i = 0; i < config.num_layers(); ++i) {
        LayerRows rows;
        if (i == 0) {
            rows.source_M = at::empty({s.M}, at::kMeta);
        }
        if (i == config.num_layers() - 1) {
            rows.block_E = at::empty({s.R}, at::kMeta);
        }
        const at::Tensor shared = i < recompute_layers ? scratch.layer.gate_up_M2I : at::Tensor();
        const LayerActivations a(buffers, s, rows, shared, i, i + 1);
    }
    const RunningGradients running(buffers, s);
    const HeadInput head(buffers, s);
}

}  // namespace

struct Drafter::Buffers {
    at::Device device;
    BufferSet set;
    DrafterPaths paths;
    std::vector<LayerWeights> weights;
    std::vector<LayerWeights> gradients;

    Buffers(const DraftConfig& config, const DraftWeights& all, at::Device on, DrafterPaths by)
        : device(on), set(on), paths(std::move(by)) {
        for (std::int64_t i = 0; i < config.num_layers(); ++i) {
            weights.emplace_back(all, all.compute_flat(), i);
            if (all.gradient_flat().defined()) {
                gradients.emplace_back(all, all.gradient_flat(), i);
            }
        }
    }
};

namespace {

/// A row on its way through the drafter: inputs, tables and what the forward left.
class RowPass {
  public:
    /// Rows that the last layer ends with.
    enum class Ends { All, Head };

    RowPass(const DraftConfig& config,
            const FrozenEnds& ends,
            const DraftWeights& weights,
            BufferSet& buffers,
            const DrafterPaths& paths,
            at::Device device,
            const data::PackedRow& row,
            const at::Tensor& features_KTH,
            RowScratch::Use use,
            Ends ends_with,
            std::int64_t recompute_layers)
        : config_(config),
          weights_(weights),
          buffers_(buffers),
          attention_(*paths.attention),
          ops_(*paths.row_ops),
          features_KTH_(features_KTH),
          keep_(use == RowScratch::Use::Training),
          ends_with_(ends_with),
          recompute_layers_(recompute_layers),
          s(config,
            row.num_tokens(),
            row.blocks.num_blocks(),
            narrow<std::int64_t>(row.blocks.head_rows.size()),
            weights.compute_flat().scalar_type(),
            tensor::sum_dtype(weights.compute_flat().scalar_type())),
          in(row, config.mask_token_id, device),
          context_(buffers, s),
          scratch_(buffers,
                   s,
                   ends_with == Ends::Head ? head_chunk_rows(s, device) : 0,
                   use,
                   /*shared_gate_up=*/recompute_layers > 0) {
        DFLASH_CHECK(row.blocks.block_size == config.block_size,
                     "row with blocks of {}, drafter of {}",
                     row.blocks.block_size,
                     config.block_size);
        tensor::expect_shape(features_KTH, {config.num_features(), s.T, s.H}, "features");
        tensor::expect_dtype(features_KTH, s.compute, "features");
        attention_.set_row(row.blocks, s.T);
        const std::vector<float> frequencies =
            tensor::rotary_frequencies(config.rope_theta, config.head_dim);
        block_rotary_ = tensor::rotary_table(in.block_position_M, frequencies);
        context_rotary_ = tensor::rotary_table(in.context_position_T, frequencies);
        at::Tensor embedded_UH = buffers_.take("h.0", {s.U, s.H}, s.compute);
        at::index_select_out(embedded_UH, ends.embed_VH, 0, in.embedded_token_U);
    }

    /// Runs all layers. For training every layer has activations of its own.
    void forward(const std::vector<LayerWeights>& layers) {
        fuse();
        for (std::int64_t i = 0; i < config_.num_layers(); ++i) {
            const std::int64_t place = keep_ ? i : i % 2;
            const std::int64_t next = keep_ ? i + 1 : (i + 1) % 2;
            const LayerInputs inputs = layer_inputs(i);
            const at::Tensor shared =
                inputs.recompute_mlp ? scratch_.layer.gate_up_M2I : at::Tensor();
            activations_.emplace_back(buffers_, s, inputs.rows, shared, place, next);
            layer_forward(s,
                          layers[narrow<std::size_t>(i)],
                          inputs,
                          attention_,
                          ops_,
                          activations_.back(),
                          scratch_.layer);
        }
    }

    /// Final-norm output of all block rows, a new tensor, if the last layer ends with all.
    at::Tensor hidden() const {
        const at::Tensor& h_MH = activations_.back().h_out_EH;
        at::Tensor hidden_MH = at::empty_like(h_MH);
        ops_.rms_norm(hidden_MH, h_MH, norm_weight(), s.eps, nullptr);
        return hidden_MH;
    }

    HeadInput head_input() const {
        HeadInput head(buffers_, s);
        ops_.rms_norm(
            head.z_RH, activations_.back().h_out_EH, norm_weight(), s.eps, &head.inverse_rms_R1);
        return head;
    }

    /// Loss of the head's rows; with `dz_RH` also its gradient there.
    HeadLoss loss(const HeadInput& input,
                  const Head& head,
                  const LossWeights& weights,
                  const at::Tensor* dz_RH) {
        return head_loss(s, input.z_RH, head, in, weights, scratch_.logits_CV, ops_, dz_RH);
    }

    /// From the gradient of the head's input rows in running.dh_end to the gradients of all
    /// weights.
    void backward(const std::vector<LayerWeights>& layers,
                  const std::vector<LayerWeights>& gradients,
                  const HeadInput& head,
                  RunningGradients& running) {
        at::Tensor rounded_RH;
        if (running.dh_rounded_MH.defined()) {
            rounded_RH = running.dh_rounded_MH.narrow(0, 0, s.R);
        }
        ops_.rms_norm_backward(running.dh_end_RH,
                               /*add=*/false,
                               gradient("norm.weight"),
                               running.dh_end_RH,
                               activations_.back().h_out_EH,
                               norm_weight(),
                               head.inverse_rms_R1,
                               {.dx_rounded_RH = rounded_RH.defined() ? &rounded_RH : nullptr});
        running.dcontext_TH.zero_();
        for (std::int64_t i = config_.num_layers() - 1; i >= 0; --i) {
            const std::size_t layer = narrow<std::size_t>(i);
            layer_backward(s,
                           layers[layer],
                           gradients[layer],
                           layer_inputs(i),
                           attention_,
                           ops_,
                           activations_[layer],
                           scratch_.layer,
                           scratch_.back,
                           running);
        }
        fuse_backward(running.dcontext_TH);
    }

  private:
    const DraftConfig& config_;
    const DraftWeights& weights_;
    BufferSet& buffers_;
    BlockAttention& attention_;
    tensor::RowOps& ops_;
    const at::Tensor& features_KTH_;
    bool keep_;
    Ends ends_with_;
    std::int64_t recompute_layers_;

  public:
    const Shapes s;
    const RowInputs in;

  private:
    void fuse() {
        fuse_features(ops_,
                      features_KTH_,
                      weight("fc.weight"),
                      weight("hidden_norm.weight"),
                      s.eps,
                      context_.fused_TH,
                      context_.context_TH,
                      &context_.inverse_rms_T1);
    }

    void fuse_backward(const at::Tensor& dcontext_TH) {
        // The context itself is not needed any more; its memory takes the gradient of fc's output.
        const at::Tensor& dfused_TH = context_.context_TH;
        ops_.rms_norm_backward(dfused_TH,
                               /*add=*/false,
                               gradient("hidden_norm.weight"),
                               dcontext_TH,
                               context_.fused_TH,
                               weight("hidden_norm.weight"),
                               context_.inverse_rms_T1);
        const at::Tensor dfc = gradient("fc.weight");
        for (std::int64_t k = 0; k < config_.num_features(); ++k) {
            ops_.linear_backward_weight(fc_columns(dfc, k), dfused_TH, features_KTH_[k]);
        }
    }

    LayerInputs layer_inputs(std::int64_t layer) const {
        return {context_.context_TH,
                block_rotary_,
                context_rotary_,
                {config_.causal(layer), config_.window(layer)},
                layer_rows(layer),
                layer < recompute_layers_};
    }

    LayerRows layer_rows(std::int64_t layer) const {
        LayerRows rows;
        if (layer == 0) {
            rows.source_M = in.embedded_M;
            rows.source_E = rows.source_M;
        }
        if (layer == config_.num_layers() - 1 && ends_with_ == Ends::Head) {
            rows.block_E = in.head_row_R;
            rows.source_E = rows.source_M.defined() ? rows.source_M.index_select(0, in.head_row_R)
                                                    : in.head_row_R;
        }
        return rows;
    }

    at::Tensor weight(const char* name) const { return weights_.weight(weights_.index(name)); }

    at::Tensor gradient(const char* name) const { return weights_.gradient(weights_.index(name)); }

    at::Tensor norm_weight() const { return weight("norm.weight"); }

    Context context_;
    RowScratch scratch_;
    std::vector<LayerActivations> activations_;
    tensor::RotaryTable block_rotary_;
    tensor::RotaryTable context_rotary_;
};

/// What the head's products in 8 bits take for a chunk of rows beside the chunk of logits.
Bytes float8_scratch(const Shapes& s,
                     std::int64_t chunk,
                     at::Device device,
                     HeadPrecision precision) {
    if (precision == HeadPrecision::Compute) {
        return 0;
    }
    const Bytes rows = chunk * (s.H + 4 + 4);  // in e4m3, scales of them and of the gradient
    if (device.is_cuda()) {
        return rows + kernels::TunedGemm::kWorkspaceBytes;
    }
    // Torch's path has operands of products as what they stand for, and the gradient in e5m2, too.
    const Bytes gradient = precision == HeadPrecision::Float8 ? chunk * s.V * (1 + 4) : 0;
    return rows + gradient + 2 * kFloat8Piece;
}

RowSums no_sums(const DraftConfig& config, at::Device device) {
    const at::TensorOptions options = at::TensorOptions(device);
    return {at::zeros({}, options.dtype(at::kDouble)),
            at::zeros({config.block_size}, options.dtype(at::kLong))};
}

}  // namespace

/// A row's pass with the parts of a drafter.
struct Drafter::Pass : RowPass {
    Pass(Drafter& d,
         const data::PackedRow& row,
         const at::Tensor& features_KTH,
         RowScratch::Use use,
         Ends ends_with)
        : RowPass(d.config_,
                  d.ends_,
                  d.weights_,
                  d.buffers_->set,
                  d.buffers_->paths,
                  d.buffers_->device,
                  row,
                  features_KTH,
                  use,
                  ends_with,
                  use == RowScratch::Use::Training ? d.recompute_layers_ : 0) {}
};

DrafterPaths make_torch_paths(at::Device device) {
    return {std::make_unique<TiledAttention>(device), std::make_unique<tensor::TorchRowOps>()};
}

Drafter::Drafter(DraftConfig config,
                 FrozenEnds ends,
                 at::Device device,
                 at::ScalarType compute_dtype,
                 DrafterPaths paths,
                 DraftWeights::Use use,
                 LossWeights loss_weights,
                 std::int64_t recompute_layers,
                 HeadPrecision head_precision)
    : config_(std::move(config)),
      ends_(std::move(ends)),
      weights_(config_, device, compute_dtype, use),
      loss_weights_(loss_weights),
      recompute_layers_(recompute_layers),
      head_precision_(head_precision),
      buffers_(std::make_unique<Buffers>(config_, weights_, device, std::move(paths))) {
    tensor::expect_shape(ends_.embed_VH, {config_.vocab_size, config_.hidden_size}, "embedding");
    tensor::expect_shape(ends_.head_VH, {config_.vocab_size, config_.hidden_size}, "head");
    tensor::expect_dtype(ends_.embed_VH, compute_dtype, "embedding");
    tensor::expect_dtype(ends_.head_VH, compute_dtype, "head");
    const bool has_words = ends_.float8.words_VH.defined();
    const bool has_columns = ends_.float8.columns_HV.defined();
    if (has_words != (head_precision != HeadPrecision::Compute) ||
        has_columns != (head_precision == HeadPrecision::Float8)) {
        const c10::NoGradGuard no_grad;
        ends_.float8 = make_float8_head(ends_.head_VH, head_precision, *buffers_->paths.row_ops);
    }
}

Drafter::~Drafter() = default;

RowSums Drafter::forward_backward(const data::PackedRow& row,
                                  const at::Tensor& features_KTH,
                                  RowTrace* trace) {
    const c10::NoGradGuard no_grad;
    DFLASH_CHECK(weights_.gradient_flat().defined(), "the drafter was made for inference");
    Buffers& b = *buffers_;
    if (trace != nullptr) {
        *trace = {.hidden_MH = hidden(row, features_KTH),
                  .hidden_grad_MH = {},
                  .cross_entropy_R = at::empty({0}),
                  .weight_R = at::empty({0})};
        trace->hidden_grad_MH =
            at::zeros(trace->hidden_MH.sizes(), weights_.gradient_flat().options());
    }
    if (row.blocks.head_rows.empty()) {
        return no_sums(config_, b.device);
    }
    Pass pass(*this, row, features_KTH, RowScratch::Use::Training, RowPass::Ends::Head);
    pass.forward(b.weights);
    const HeadInput head = pass.head_input();
    RunningGradients running(b.set, pass.s);
    const HeadLoss loss = pass.loss(
        head, {ends_.head_VH, head_precision_, ends_.float8}, loss_weights_, &running.dh_end_RH);
    if (trace != nullptr) {
        trace->hidden_grad_MH.index_copy_(0, pass.in.head_row_R, running.dh_end_RH);
        trace->cross_entropy_R = loss.cross_entropy_R;
        trace->weight_R = loss.weight_R;
    }
    pass.backward(b.weights, b.gradients, head, running);
    return {loss.loss, loss.correct_B};
}

RowSums Drafter::evaluate(const data::PackedRow& row,
                          const at::Tensor& features_KTH,
                          at::Tensor* argmax_R) {
    const c10::NoGradGuard no_grad;
    Buffers& b = *buffers_;
    if (row.blocks.head_rows.empty()) {
        if (argmax_R != nullptr) {
            *argmax_R = at::empty({0}, at::TensorOptions(b.device).dtype(at::kLong));
        }
        return no_sums(config_, b.device);
    }
    Pass pass(*this, row, features_KTH, RowScratch::Use::Forward, RowPass::Ends::Head);
    pass.forward(b.weights);
    const HeadLoss loss =
        pass.loss(pass.head_input(), {ends_.head_VH}, LossWeights{}, /*dz_RH=*/nullptr);
    if (argmax_R != nullptr) {
        *argmax_R = loss.argmax_R;
    }
    return {loss.loss, loss.correct_B};
}

at::Tensor Drafter::hidden(const data::PackedRow& row, const at::Tensor& features_KTH) {
    const c10::NoGradGuard no_grad;
    Buffers& b = *buffers_;
    Pass pass(*this, row, features_KTH, RowScratch::Use::Forward, RowPass::Ends::All);
    pass.forward(b.weights);
    return pass.hidden();
}

Drafter::MemoryNeed Drafter::memory_need(const DraftConfig& config,
                                         std::int64_t tokens,
                                         std::int64_t blocks,
                                         Bytes element_size,
                                         std::int64_t recompute_layers,
                                         HeadPrecision head_precision) {
    const at::ScalarType compute = element_size == 8   ? at::kDouble
                                   : element_size == 4 ? at::kFloat
                                                       : at::kBFloat16;
    const at::ScalarType sum = tensor::sum_dtype(compute);
    const Bytes sum_size = element_size == 8 ? 8 : 4;
    // bf16 is the dtype of GPUs; the sizes of tiles and chunks follow from the kind of device.
    const at::Device device(element_size == 2 ? at::kCUDA : at::kCPU);
    const Shapes s(config, tokens, blocks, blocks * (config.block_size - 1), compute, sum);
    BufferSet buffers{at::Device(at::kMeta)};
    take_all(buffers, config, s, head_chunk_rows(s, device), recompute_layers);

    const TiledAttention attention(device);
    // Temporaries of the row operations: four of the largest they work on (norm backward), and
    // with mixed products the activation's pieces.
    const Bytes row_piece =
        std::max({s.M * s.H, s.M * s.Q * s.d, s.T * s.H, s.T * s.K * s.d}) * sum_size;
    const Bytes swiglu = 6 * std::min(s.M * s.I, tensor::kSwigluPiece) * sum_size;
    // What Torch's row operations keep for heads between norm and rotation.
    const Bytes heads = std::max(s.M * s.Q, s.T * s.K) * s.d * sum_size;
    // Integers and weights of the row, rotary tables.
    const Bytes inputs = (s.U + 4 * s.M + 2 * s.T + 6 * s.R) * 8 + (s.M + s.T) * s.d * 4 * 2;
    MemoryNeed need;
    need.weights = num_parameters(config) * (element_size + sum_size);
    need.activations = buffers.bytes() + attention.scratch_bytes(s.Q, s.d, s.B, s.N, element_size) +
                       4 * row_piece + heads + swiglu + inputs +
                       float8_scratch(s, head_chunk_rows(s, device), device, head_precision);
    need.largest_piece =
        std::max({buffers.largest(), attention.largest_tile(s.Q, s.B) * sum_size, row_piece});
    return need;
}

}  // namespace dflash::model
