// SPDX-License-Identifier: Apache-2.0
// Legend: S sequences of a step, V vocabulary.
#include "generator_steps.hpp"

#include <dflash/core/check.hpp>
#include <dflash/tensor/bridge.hpp>

#include <span>

namespace dflash::target {

Generator::Steps::Steps(TargetModel& model,
                        DecodeCache& cache,
                        const at::Tensor& latest,
                        bool graphs)
    : cache_(cache),
      device_(latest.device()),
      steps_([&model, &cache, latest](const at::Tensor& input_S2) {
          const at::Tensor slots_S = input_S2.select(1, 0).contiguous();
          const at::Tensor residual_SH =
              model.decode(cache,
                           {.tokens_T = latest.index_select(0, slots_S),
                            .slots_S = slots_S,
                            .lengths_S = input_S2.select(1, 1).contiguous()});
          return model.logits(residual_SH);
      }) {
    if (graphs) {
        const std::vector<std::int32_t> nobody = {narrow<std::int32_t>(cache.slots()), 0};
        steps_.capture(cache.slots(),
                       tensor::upload(std::span<const std::int32_t>(nobody), device_),
                       /*before=*/nullptr);
    }
}

at::Tensor Generator::Steps::run(const std::vector<std::int32_t>& slots) {
    const auto count = static_cast<std::int64_t>(slots.size());
    std::vector<std::int32_t> input;
    for (const std::int32_t slot : slots) {
        input.push_back(slot);
        input.push_back(narrow<std::int32_t>(cache_.length(slot)));
    }
    const std::int64_t rows = steps_.rows_for(count);
    for (std::int64_t nobody = count; nobody < rows; ++nobody) {
        input.push_back(narrow<std::int32_t>(cache_.slots()));
        input.push_back(0);
    }
    const at::Tensor logits_SV =
        steps_.run(tensor::upload(std::span<const std::int32_t>(input), device_).view({rows, 2}));
    for (const std::int32_t slot : slots) {
        cache_.note_appended(slot, 1);
    }
    return logits_SV.narrow(0, 0, count);
}

}  // namespace dflash::target
