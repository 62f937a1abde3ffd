// SPDX-License-Identifier: Apache-2.0
#include "dense_target.hpp"

#include <dflash/core/check.hpp>
#include <dflash/target/target_model.hpp>

#include <utility>

namespace dflash::target {

std::unique_ptr<TargetModel> load_target(const std::string& folder, const LoadOptions& options) {
    const TargetConfig config = TargetConfig::read(folder);
    const std::int64_t num_layers =
        options.num_layers == 0 ? config.num_layers : options.num_layers;
    DFLASH_CHECK(num_layers >= 1 && num_layers <= config.num_layers,
                 "{} layers asked for, the target has {}",
                 num_layers,
                 config.num_layers);
    const Checkpoint files(folder, config);
    return std::make_unique<DenseTarget>(
        config,
        load_dense_weights(
            files, config, num_layers, options.with_head, options.device, options.dtype),
        options.row_ops);
}

void judge_target(const std::string& folder) {
    const Checkpoint files(folder, TargetConfig::read(folder));
}

std::unique_ptr<TargetModel> replicate(const TargetModel& model,
                                       at::Device device,
                                       std::shared_ptr<tensor::RowOps> row_ops) {
    const auto* dense = dynamic_cast<const DenseTarget*>(&model);
    DFLASH_CHECK(dense != nullptr, "a target of another making");
    return dense->copy_to(device, std::move(row_ops));
}

Ends load_ends(const std::string& folder, const LoadOptions& options) {
    const TargetConfig config = TargetConfig::read(folder);
    const Checkpoint files(folder, config);
    Ends ends;
    ends.embed_VH = load_weight(files, kEmbedName, options.device, options.dtype);
    ends.head_VH = files.head_is_embedding()
                       ? ends.embed_VH
                       : load_weight(files, kHeadName, options.device, options.dtype);
    return ends;
}

}  // namespace dflash::target
