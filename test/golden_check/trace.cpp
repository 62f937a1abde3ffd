// SPDX-License-Identifier: Apache-2.0
// Mode "trace": optimizer steps on one batch with the anchors and the learning rate of every step
// given.
#include "drafter_case.hpp"

#include <dflash/tensor/bridge.hpp>
#include <dflash/train/optimizer.hpp>

#include <cmath>
#include <string>
#include <vector>

namespace dflash::golden {
namespace {

// Tolerances of the golden data's README.
constexpr double kLoss = 1e-5;
constexpr double kNorm = 5e-5;
constexpr double kWeights = 5e-4;
// What an error of kWeights (rms over rms) can do to the checksums of a weight, divided as for
// gradients: the ramp's rms is 28.
constexpr double kSum = kWeights;
constexpr double kSumOfSquares = 2 * kWeights;
constexpr double kRampSum = 28 * kWeights;

double relative(double got, double expected) {
    return std::abs(got - expected) / std::abs(expected);
}

train::AdamWOptions read_options(const io::Json& json, const std::string& where) {
    train::AdamWOptions options;
    const std::vector<io::Json>& betas = json.find("betas")->items();
    options.beta1 = betas.at(0).to_double();
    options.beta2 = betas.at(1).to_double();
    options.eps = json.require_number("eps", where);
    options.weight_decay = json.require_number("weight_decay", where);
    options.clip = json.require_number("clip_grad_norm", where);
    return options;
}

void compare_weights(const DrafterCase& c, model::Drafter& drafter, Verdict& verdict) {
    const io::SafetensorsFile expected(c.path("expected"));
    const io::Json* sums = c.json.find("final_weight_checksums_fp32");
    Worst worst;
    Worst worst_sum;
    Worst worst_squares;
    Worst worst_ramp;
    std::int64_t compared = 0;
    std::int64_t missing = 0;
    const std::vector<model::WeightSpec>& specs = drafter.weights().specs();
    for (std::size_t i = 0; i < specs.size(); ++i) {
        const at::Tensor weight =
            drafter.weights().weight(static_cast<std::int64_t>(i)).to(at::kCPU, at::kDouble);
        // Of matrices only the first rows are stored.
        if (const io::TensorView* view = expected.find("final." + specs[i].name)) {
            const at::Tensor want = tensor::load(*view, at::kCPU, at::kDouble);
            worst.add(max_over_rms(weight.narrow(0, 0, want.size(0)), want), specs[i].name);
            ++compared;
        }
        const io::Json* entry = sums == nullptr ? nullptr : sums->find(specs[i].name);
        if (entry == nullptr) {
            ++missing;
            continue;
        }
        const std::vector<double> got = checksums(weight);
        const double squares = entry->items()[1].to_double();
        const double unit = std::sqrt(static_cast<double>(weight.numel()) * squares);
        worst_sum.add(std::abs(got[0] - entry->items()[0].to_double()) / unit, specs[i].name);
        worst_squares.add(relative(got[1], squares), specs[i].name);
        worst_ramp.add(std::abs(got[2] - entry->items()[2].to_double()) / unit, specs[i].name);
    }
    verdict.exact("final weights found",
                  static_cast<std::int64_t>(expected.tensors().size()) - compared,
                  static_cast<std::int64_t>(expected.tensors().size()),
                  "expected.safetensors");
    verdict.exact("final weights with a checksum",
                  missing,
                  static_cast<std::int64_t>(specs.size()),
                  "case.json");
    verdict.compare("final weights", worst.error(), kWeights, worst.where());
    verdict.compare("final weights, sum", worst_sum.error(), kSum, worst_sum.where());
    verdict.compare(
        "final weights, squares", worst_squares.error(), kSumOfSquares, worst_squares.where());
    verdict.compare("final weights, ramp", worst_ramp.error(), kRampSum, worst_ramp.where());
}

}  // namespace

void check_trace(const std::string& case_folder, const Options& options, Verdict& verdict) {
    const at::Device device = tensor::torch_device(options.device);
    const DrafterCase c(case_folder, device);
    const auto drafter = c.make_oracle(device);
    train::AdamW optimizer(drafter->weights(),
                           read_options(*c.json.find("optimizer"), c.folder + "/case.json"));
    std::vector<std::size_t> packed;
    for (std::size_t b = 0; b < c.sequences.size(); ++b) {
        packed.push_back(b);
    }
    const at::Tensor features_KTH = c.features(packed);
    const std::vector<io::Json>& anchors = c.json.find("anchors_per_step")->items();
    const std::vector<io::Json>& steps = c.json.find("steps_fp32")->items();
    verdict.exact(
        "steps with anchors",
        static_cast<std::int64_t>(anchors.size()) - static_cast<std::int64_t>(steps.size()),
        static_cast<std::int64_t>(steps.size()),
        "case.json");

    Worst worst_loss;
    Worst worst_norm;
    std::int64_t wrong_accuracy = 0;
    for (std::size_t i = 0; i < steps.size(); ++i) {
        const data::PackedRow row = c.make_row(packed, read_anchors(anchors[i]));
        drafter->weights().gradient_flat().zero_();
        const model::RowSums sums = drafter->forward_backward(row, features_KTH);
        const double weight_sum = row.blocks.weight_sum;
        const at::Tensor norm = optimizer
                                    .step(drafter->weights().gradient_flat(),
                                          1.0 / weight_sum,
                                          steps[i].require_number("lr", c.folder))
                                    .norm;
        const std::string where = fmt::format("step {}", i);
        worst_loss.add(relative(sums.loss.item<double>() / weight_sum,
                                steps[i].require_number("loss", c.folder)),
                       where);
        worst_norm.add(
            relative(norm.item<double>(), steps[i].require_number("grad_norm", c.folder)), where);
        const double labels = static_cast<double>(row.blocks.labels.size());
        const double correct = static_cast<double>(sums.correct.sum().item<std::int64_t>());
        wrong_accuracy +=
            std::abs(correct / labels - steps[i].require_number("accuracy", c.folder)) * labels >
                    0.01
                ? 1
                : 0;
    }
    verdict.compare("loss", worst_loss.error(), kLoss, worst_loss.where());
    verdict.compare("gradient norm", worst_norm.error(), kNorm, worst_norm.where());
    verdict.exact("accuracy", wrong_accuracy, static_cast<std::int64_t>(steps.size()), "some step");
    compare_weights(c, *drafter, verdict);
}

}  // namespace dflash::golden
