// SPDX-License-Identifier: Apache-2.0
// Mode "step": hidden rows, loss, slot weights and gradients of one batch, with the sequences
// packed into one row and one by one.
#include "drafter_case.hpp"
#include "gpu_kernels.hpp"

#include <dflash/model/kernel_attention.hpp>
#include <dflash/tensor/bridge.hpp>
#include <dflash/tensor/kernel_row_ops.hpp>

#include <cmath>
#include <vector>

namespace dflash::golden {
namespace {

// Tolerances of the golden data's README for fp32.
constexpr double kScalar = 2e-6;
constexpr double kHidden = 5e-5;
constexpr double kCrossEntropy = 5e-5;
constexpr double kSlotWeight = 2e-7;
constexpr double kDpaceWeight = 2e-5;
constexpr double kGradientMax = 3e-4;
constexpr double kGradientRms = 2e-5;
constexpr double kSumOfSquares = 4e-5;
constexpr double kSum = 2e-5;
constexpr double kRampSum = 6e-4;
constexpr double kNorm = 2e-5;    // half of kSumOfSquares, as a norm is its root
constexpr double kLogits = 1e-4;  // of the targets' table

// Bounds of a step in bf16: what autograd makes on these cases where everything is rounded to bf16
// (docs/numerics.md).
constexpr double kRoundedLoss = 5e-3;
constexpr double kRoundedGradient = 6e-2;

/// Results of a batch in the layout of the case: sequences, their anchors, slots.
struct StepResult {
    double numerator = 0;
    double denominator = 0;
    std::int64_t correct = 0;
    std::int64_t counted = 0;
    at::Tensor hidden_bNBH;  // fp64, on the CPU, like all of these
    at::Tensor hidden_grad_bNBH;
    at::Tensor weight_bNB;
    at::Tensor label_bNB;
    at::Tensor ce_bNB;
    std::vector<at::Tensor> gradients;
};

/// Runs every group of sequences as one row and adds up.
StepResult run_step(const DrafterCase& c,
                    const std::unique_ptr<model::Drafter>& drafter,
                    const Anchors& anchors,
                    const std::vector<std::vector<std::size_t>>& groups) {
    const at::ScalarType dtype = drafter->weights().compute_flat().scalar_type();
    const std::int64_t b = static_cast<std::int64_t>(anchors.size());
    const std::int64_t N = static_cast<std::int64_t>(anchors.front().size());
    const std::int64_t B = c.config.block_size;
    const std::int64_t H = c.config.hidden_size;
    StepResult result;
    result.hidden_bNBH = at::zeros({b, N, B, H}, at::kDouble);
    result.hidden_grad_bNBH = at::zeros({b, N, B, H}, at::kDouble);
    result.weight_bNB = at::zeros({b, N, B}, at::kDouble);
    result.label_bNB = at::full({b, N, B}, -1, at::kLong);
    result.ce_bNB = at::zeros({b, N, B}, at::kDouble);
    for (const std::vector<std::size_t>& members : groups) {
        const data::PackedRow row = c.make_row(members, anchors);
        model::RowTrace trace;
        const model::RowSums sums =
            drafter->forward_backward(row, c.features(members).to(dtype), &trace);
        result.numerator += sums.loss.item<double>();
        result.denominator += model::loss_divisor(c.loss_weights, row);
        result.correct += sums.correct.sum().item<std::int64_t>();
        result.counted += static_cast<std::int64_t>(row.blocks.labels.size());

        // Block n of the row is anchor `place` of its sequence.
        std::vector<std::pair<std::int64_t, std::int64_t>> place_of_block;
        for (const std::size_t member : members) {
            for (std::int64_t place = 0; place < N; ++place) {
                if (anchors[member][static_cast<std::size_t>(place)] >= 0) {
                    place_of_block.emplace_back(static_cast<std::int64_t>(member), place);
                }
            }
        }
        const at::Tensor hidden = trace.hidden_MH.to(at::kCPU, at::kDouble).view({-1, B, H});
        const at::Tensor grad = trace.hidden_grad_MH.to(at::kCPU, at::kDouble).view({-1, B, H});
        for (std::size_t n = 0; n < place_of_block.size(); ++n) {
            const auto [sequence, place] = place_of_block[n];
            result.hidden_bNBH[sequence][place].copy_(hidden[static_cast<std::int64_t>(n)]);
            result.hidden_grad_bNBH[sequence][place].copy_(grad[static_cast<std::int64_t>(n)]);
        }
        const at::Tensor ce = trace.cross_entropy_R.to(at::kCPU, at::kDouble);
        const at::Tensor weight = trace.weight_R.to(at::kCPU, at::kDouble);
        for (std::size_t r = 0; r < row.blocks.head_rows.size(); ++r) {
            const std::int64_t head_row = row.blocks.head_rows[r];
            const auto [sequence, place] = place_of_block[static_cast<std::size_t>(head_row / B)];
            const std::int64_t slot = head_row % B;
            result.weight_bNB[sequence][place][slot] = weight[static_cast<std::int64_t>(r)];
            result.label_bNB[sequence][place][slot] = row.blocks.labels[r];
            result.ce_bNB[sequence][place][slot] = ce[static_cast<std::int64_t>(r)];
        }
    }
    result.hidden_grad_bNBH.div_(result.denominator);
    for (std::size_t i = 0; i < drafter->weights().specs().size(); ++i) {
        result.gradients.push_back(drafter->weights()
                                       .gradient(static_cast<std::int64_t>(i))
                                       .to(at::kCPU, at::kDouble)
                                       .div(result.denominator));
    }
    return result;
}

double relative(double got, double expected) {
    return std::abs(got - expected) / std::abs(expected);
}

/// Compares the slots of all used blocks.
void compare_slots(const std::string& how,
                   const DrafterCase& c,
                   const io::SafetensorsFile& expected,
                   const Anchors& anchors,
                   const StepResult& result,
                   Verdict& verdict) {
    const auto load = [&](const char* name) {
        return tensor::load(expected.at(name), at::kCPU, at::kDouble);
    };
    const at::Tensor hidden = load("hidden");
    Worst worst_hidden;
    for (std::size_t b = 0; b < anchors.size(); ++b) {
        for (std::size_t n = 0; n < anchors[b].size(); ++n) {
            if (anchors[b][n] >= 0) {
                const std::int64_t i = static_cast<std::int64_t>(b);
                const std::int64_t j = static_cast<std::int64_t>(n);
                worst_hidden.add(max_over_rms(result.hidden_bNBH[i][j], hidden[i][j]),
                                 fmt::format("sequence {} block {}", b, n));
            }
        }
    }
    verdict.compare(how + "hidden", worst_hidden.error(), kHidden, worst_hidden.where());
    const at::Tensor grad = load("hidden_grad");
    verdict.compare(how + "hidden_grad max",
                    max_over_rms(result.hidden_grad_bNBH, grad),
                    kGradientMax,
                    "all blocks");
    verdict.compare(how + "hidden_grad rms",
                    rms_over_rms(result.hidden_grad_bNBH, grad),
                    kGradientRms,
                    "all blocks");

    const auto worst_slot = [&](const at::Tensor& got, const at::Tensor& want) {
        const at::Tensor error = (got - want).abs().flatten();
        const std::int64_t at = error.argmax().item<std::int64_t>();
        const std::int64_t B = c.config.block_size;
        const std::int64_t N = got.size(1);
        Worst worst;
        worst.add(error[at].item<double>(),
                  fmt::format("sequence {} block {} slot {}", at / (N * B), at / B % N, at % B));
        return worst;
    };
    const Worst weight = worst_slot(result.weight_bNB, load("slot_weight"));
    const bool packed = c.loss_weights.kind == model::SlotWeighting::Packed;
    verdict.compare(
        how + "slot_weight", weight.error(), packed ? kSlotWeight : kDpaceWeight, weight.where());
    const Worst ce = worst_slot(result.ce_bNB, load("slot_ce"));
    verdict.compare(how + "slot_ce", ce.error(), kCrossEntropy, ce.where());
    const at::Tensor label = tensor::load(expected.at("slot_label"), at::kCPU, at::kLong);
    const at::Tensor differ = label.ne(result.label_bNB).flatten();
    verdict.exact(how + "slot_label",
                  differ.sum().item<std::int64_t>(),
                  label.numel(),
                  fmt::format("slot {}", differ.to(at::kInt).argmax().item<std::int64_t>()));

    const io::SafetensorsFile frozen(c.path("frozen"));
    const at::Tensor head = tensor::load(frozen.at("lm_head.weight"), at::kCPU, at::kDouble);
    const at::Tensor logits_at = tensor::load(expected.at("logits_at"), at::kCPU, at::kLong);
    const at::Tensor logits = load("logits");
    Worst worst_logits;
    for (std::int64_t i = 0; i < logits_at.size(0); ++i) {
        const std::int64_t b = logits_at[i][0].item<std::int64_t>();
        const std::int64_t n = logits_at[i][1].item<std::int64_t>();
        const std::int64_t k = logits_at[i][2].item<std::int64_t>();
        worst_logits.add(max_over_rms(at::mv(head, result.hidden_bNBH[b][n][k]), logits[i]),
                         fmt::format("sequence {} block {} slot {}", b, n, k));
    }
    verdict.compare(how + "logits", worst_logits.error(), kLogits, worst_logits.where());
}

void compare_gradients(const std::string& how,
                       const DrafterCase& c,
                       const io::SafetensorsFile& expected,
                       const StepResult& result,
                       Verdict& verdict) {
    const std::vector<model::WeightSpec> specs = model::weight_specs(c.config);
    const io::Json* sums = c.json.find("gradient_checksums");
    Worst worst_max;
    Worst worst_rms;
    Worst worst_sum;
    Worst worst_squares;
    Worst worst_ramp;
    double norm = 0;
    std::int64_t missing = 0;
    for (std::size_t i = 0; i < specs.size(); ++i) {
        const at::Tensor& gradient = result.gradients[i];
        norm += gradient.square().sum().item<double>();
        if (const io::TensorView* view = expected.find("grad." + specs[i].name)) {
            const at::Tensor want = tensor::load(*view, at::kCPU, at::kDouble);
            worst_max.add(max_over_rms(gradient, want), specs[i].name);
            worst_rms.add(rms_over_rms(gradient, want), specs[i].name);
        }
        const io::Json* entry = sums == nullptr ? nullptr : sums->find(specs[i].name);
        if (entry == nullptr) {
            ++missing;
            continue;
        }
        const std::vector<double> got = checksums(gradient);
        const double squares = entry->items()[1].to_double();
        const double unit = std::sqrt(static_cast<double>(gradient.numel()) * squares);
        worst_sum.add(std::abs(got[0] - entry->items()[0].to_double()) / unit, specs[i].name);
        worst_squares.add(relative(got[1], squares), specs[i].name);
        worst_ramp.add(std::abs(got[2] - entry->items()[2].to_double()) / unit, specs[i].name);
    }
    verdict.exact(how + "gradients with a checksum",
                  missing,
                  static_cast<std::int64_t>(specs.size()),
                  "case.json");
    verdict.compare(how + "gradients max", worst_max.error(), kGradientMax, worst_max.where());
    verdict.compare(how + "gradients rms", worst_rms.error(), kGradientRms, worst_rms.where());
    verdict.compare(how + "gradients, sum", worst_sum.error(), kSum, worst_sum.where());
    verdict.compare(
        how + "gradients, squares", worst_squares.error(), kSumOfSquares, worst_squares.where());
    verdict.compare(how + "gradients, ramp", worst_ramp.error(), kRampSum, worst_ramp.where());
    verdict.compare(how + "gradient_norm",
                    relative(std::sqrt(norm), c.json.require_number("gradient_norm", c.folder)),
                    kNorm,
                    "all weights");
}

/// A step in bf16 with the kernels of a GPU.
void compare_rounded(const std::string& how,
                     const DrafterCase& c,
                     const io::SafetensorsFile& expected,
                     const StepResult& result,
                     Verdict& verdict) {
    const auto load = [&](const std::string& name) {
        return tensor::load(expected.at(name), at::kCPU, at::kDouble);
    };
    verdict.compare(
        how + "loss",
        relative(result.numerator / result.denominator, c.json.require_number("loss", c.folder)),
        kRoundedLoss,
        "batch");
    verdict.compare(how + "hidden_grad rms",
                    rms_over_rms(result.hidden_grad_bNBH, load("hidden_grad")),
                    kRoundedGradient,
                    "all blocks");
    Worst worst;
    const std::vector<model::WeightSpec> specs = model::weight_specs(c.config);
    for (std::size_t i = 0; i < specs.size(); ++i) {
        if (expected.find("grad." + specs[i].name) != nullptr) {
            worst.add(rms_over_rms(result.gradients[i], load("grad." + specs[i].name)),
                      specs[i].name);
        }
    }
    verdict.compare(how + "gradients rms", worst.error(), kRoundedGradient, worst.where());
}

}  // namespace

void check_step(const std::string& case_folder, const Options& options, Verdict& verdict) {
    const at::Device device = tensor::torch_device(options.device);
    const DrafterCase c(case_folder, device);
    const io::SafetensorsFile expected(c.path("expected"));
    const Anchors anchors = read_anchors(*c.json.find("anchors"));

    struct Layout {
        std::string how;
        std::vector<std::vector<std::size_t>> groups;
    };

    Layout packed{"packed ", {{}}};
    Layout separate{"separate ", {}};
    for (std::size_t b = 0; b < c.sequences.size(); ++b) {
        packed.groups.front().push_back(b);
        separate.groups.push_back({b});
    }
    for (const auto& [how, groups] : {packed, separate}) {
        const StepResult result = run_step(c, c.make_oracle(device), anchors, groups);
        const auto scalar = [&](const char* name) { return c.json.require_number(name, c.folder); };
        verdict.compare(how + "loss",
                        relative(result.numerator / result.denominator, scalar("loss")),
                        kScalar,
                        "batch");
        verdict.compare(
            how + "numerator", relative(result.numerator, scalar("numerator")), kScalar, "batch");
        verdict.compare(how + "denominator",
                        relative(result.denominator, scalar("denominator")),
                        kScalar,
                        "batch");
        verdict.exact(how + "correct",
                      std::abs(result.correct - c.json.require_integer("correct", c.folder)),
                      result.counted,
                      "batch");
        verdict.exact(how + "counted_labels",
                      std::abs(result.counted - c.json.require_integer("counted_labels", c.folder)),
                      result.counted,
                      "batch");
        compare_slots(how, c, expected, anchors, result, verdict);
        compare_gradients(how, c, expected, result, verdict);
    }
    if (options.device.is_cuda()) {
        GpuKernels kernels(options.device);
        const auto find = [&](const kernels::KernelSpec& spec) { return kernels.find(spec); };
        // Products as LibTorch makes them, and by the algorithms that training takes.
        for (const bool tuned : {false, true}) {
            const auto gemm = tuned ? std::make_shared<kernels::TunedGemm>(
                                          std::make_shared<kernels::GemmChoices>("", ""))
                                    : nullptr;
            const auto drafter =
                c.make_drafter(device,
                               at::kBFloat16,
                               {std::make_unique<model::KernelAttention>(
                                    c.config, device, kernels.architecture(), find),
                                std::make_unique<tensor::KernelRowOps>(device, find, gemm)});
            // The first step with tuned products is lost.
            run_step(c, drafter, anchors, packed.groups);
            drafter->weights().gradient_flat().zero_();
            compare_rounded(tuned ? "bf16, tuned products, " : "bf16 ",
                            c,
                            expected,
                            run_step(c, drafter, anchors, packed.groups),
                            verdict);
        }
    }
}

}  // namespace dflash::golden
