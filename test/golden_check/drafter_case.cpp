// SPDX-License-Identifier: Apache-2.0
#include "drafter_case.hpp"

#include <dflash/core/error.hpp>
#include <dflash/data/anchors.hpp>
#include <dflash/tensor/bridge.hpp>

#include <cmath>
#include <map>
#include <memory>
#include <utility>

namespace dflash::golden {
namespace {

/// By the names of SpecForge's loss types.
const std::map<std::string, model::SlotWeighting> kWeightings{
    {"dflash", model::SlotWeighting::Packed},
    {"dpace", model::SlotWeighting::Dpace},
    {"dpace-cumulative-confidence-only", model::SlotWeighting::DpacePrefix},
    {"dpace-continuation-value-only", model::SlotWeighting::DpaceSuffix}};

std::vector<Sequence> read_sequences(const DrafterCase& c, at::Device device) {
    const io::SafetensorsFile inputs(c.path("inputs"));
    const at::Tensor ids_bS = tensor::load(inputs.at("input_ids"), at::kCPU, at::kLong);
    const at::Tensor mask_bS = tensor::load(inputs.at("loss_mask"), at::kCPU, at::kByte);
    const at::Tensor features_bSX = tensor::load(inputs.at("features"), device, at::kFloat);
    const std::int64_t H = c.config.hidden_size;
    std::vector<Sequence> sequences;
    for (const io::Json& item : c.json.find("sequence_lengths")->items()) {
        const std::int64_t b = static_cast<std::int64_t>(sequences.size());
        const std::int64_t S = item.to_integer().value();
        Sequence sequence;
        for (std::int64_t t = 0; t < S; ++t) {
            sequence.tokens.push_back(static_cast<TokenId>(ids_bS[b][t].item<std::int64_t>()));
            sequence.trainable.push_back(mask_bS[b][t].item<std::uint8_t>());
        }
        sequence.features_KSH = features_bSX[b]
                                    .narrow(0, 0, S)
                                    .view({S, c.config.num_features(), H})
                                    .transpose(0, 1)
                                    .contiguous();
        sequences.push_back(std::move(sequence));
    }
    return sequences;
}

}  // namespace

DrafterCase::DrafterCase(const std::string& case_folder, at::Device device)
    : folder(case_folder),
      json(io::read_json_file(case_folder + "/case.json")),
      config(model::DraftConfig::from_json(io::read_json_file(path("config")), path("config"))) {
    const std::string loss = json.optional_string("loss_type", folder).value_or("dflash");
    const auto known = kWeightings.find(loss);
    if (known == kWeightings.end()) {
        throw Error(
            ErrorKind::Config,
            {.what = fmt::format("loss_type: got \"{}\", expected \"dflash\" or \"dpace...\": "
                                 "other losses are not supported",
                                 loss),
             .where = folder + "/case.json",
             .cause = {},
             .hint = {}});
    }
    loss_weights.kind = known->second;
    loss_weights.alpha = json.optional_number("dpace_alpha", folder).value_or(0.5);
    gamma = json.optional_number("gamma", folder).value_or(0);
    config.block_size = json.require_integer("block_size", folder);
    config.mask_token_id = static_cast<TokenId>(json.require_integer("mask_token_id", folder));
    config.validate(folder);
    sequences = read_sequences(*this, device);
}

std::string DrafterCase::path(const std::string& key) const {
    return folder + "/" + json.require_string(key, folder + "/case.json");
}

std::unique_ptr<model::Drafter> DrafterCase::make_oracle(at::Device device) const {
    return make_drafter(device, at::kFloat, model::make_torch_paths(device));
}

std::unique_ptr<model::Drafter> DrafterCase::make_drafter(at::Device device,
                                                          at::ScalarType dtype,
                                                          model::DrafterPaths paths) const {
    const io::SafetensorsFile frozen(path("frozen"));
    auto drafter = std::make_unique<model::Drafter>(
        config,
        model::FrozenEnds{tensor::load(frozen.at("embed_tokens.weight"), device, dtype),
                          tensor::load(frozen.at("lm_head.weight"), device, dtype)},
        device,
        dtype,
        std::move(paths),
        model::DraftWeights::Use::Training,
        loss_weights);
    const io::SafetensorsFile file(path("weights"));
    const std::vector<model::WeightSpec>& specs = drafter->weights().specs();
    for (std::size_t i = 0; i < specs.size(); ++i) {
        tensor::load_into(file.at(specs[i].name),
                          drafter->weights().weight(static_cast<std::int64_t>(i)),
                          file.path());
    }
    if (file.tensors().size() != specs.size()) {
        throw Error(ErrorKind::Data,
                    {.what = fmt::format(
                         "got {} weights, expected {}", file.tensors().size(), specs.size()),
                     .where = file.path(),
                     .cause = {},
                     .hint = {}});
    }
    return drafter;
}

data::PackedRow DrafterCase::make_row(const std::vector<std::size_t>& members,
                                      const Anchors& anchors) const {
    const data::BlockRule rule{.block_size = static_cast<std::int32_t>(config.block_size),
                               .loss_decay_gamma = gamma,
                               .max_anchors = 1 << 20};
    data::PackedRow row;
    for (const std::size_t b : members) {
        data::append_document(row, static_cast<SampleId>(b), sequences[b].tokens);
        std::vector<std::int32_t> used;
        for (const std::int32_t anchor : anchors[b]) {
            if (anchor >= 0) {
                used.push_back(anchor);
            }
        }
        data::append_blocks(row, sequences[b].trainable, used, rule);
    }
    return row;
}

at::Tensor DrafterCase::features(const std::vector<std::size_t>& members) const {
    std::vector<at::Tensor> parts;
    for (const std::size_t b : members) {
        parts.push_back(sequences[b].features_KSH);
    }
    return at::cat(parts, 1);
}

Anchors read_anchors(const io::Json& json) {
    Anchors result;
    for (const io::Json& sequence : json.items()) {
        result.emplace_back();
        for (const io::Json& anchor : sequence.items()) {
            result.back().push_back(static_cast<std::int32_t>(anchor.to_integer().value()));
        }
    }
    return result;
}

std::vector<double> checksums(const at::Tensor& values) {
    const at::Tensor x = values.to(at::kCPU, at::kDouble).flatten();
    const at::Tensor ramp = at::arange(x.numel(), x.options()).remainder(97).sub(48);
    return {
        x.sum().item<double>(), x.square().sum().item<double>(), x.mul(ramp).sum().item<double>()};
}

double max_over_rms(const at::Tensor& a, const at::Tensor& b) {
    const at::Tensor expected = b.to(at::kCPU, at::kDouble);
    const at::Tensor error = a.to(at::kCPU, at::kDouble) - expected;
    return error.abs().max().item<double>() / expected.square().mean().sqrt().item<double>();
}

double rms_over_rms(const at::Tensor& a, const at::Tensor& b) {
    const at::Tensor expected = b.to(at::kCPU, at::kDouble);
    const at::Tensor error = a.to(at::kCPU, at::kDouble) - expected;
    return std::sqrt(error.square().mean().item<double>() /
                     expected.square().mean().item<double>());
}

}  // namespace dflash::golden
