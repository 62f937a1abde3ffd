// SPDX-License-Identifier: Apache-2.0
#include <dflash/core/text.hpp>
#include <dflash/train/run_products.hpp>

#include <algorithm>
#include <fmt/format.h>
#include <utility>

namespace dflash::train {

std::shared_ptr<kernels::GemmChoices> collect_choices(const std::string& gpu,
                                                      const std::string& library,
                                                      const ProductRecord& saved,
                                                      const std::string& folder) {
    auto choices = std::make_shared<kernels::GemmChoices>(gpu, library);
    // What has a choice keeps it.
    for (const GpuProducts& products : saved.gpus) {
        if (products.gpu == gpu && products.library == library) {
            choices->add(products.choices);
        }
    }
    if (!folder.empty()) {
        choices->load_from(folder);
    }
    return choices;
}

RunProducts::RunProducts(std::string way, const std::string& cache_root, ProductRecord saved)
    : way_(std::move(way)),
      folder_(cache_root.empty() ? std::string() : cache_root + "/products"),
      saved_(std::move(saved)) {}

std::shared_ptr<kernels::TunedGemm> RunProducts::make_gemm(const gpu::Device& device) {
    if (!device.is_cuda()) {
        return nullptr;
    }
    const std::lock_guard lock(mutex_);
    Model& model = model_of(device);
    if (way_ == "torch") {
        return nullptr;
    }
    model.gemms.push_back(std::make_shared<kernels::TunedGemm>(model.choices));
    return model.gemms.back();
}

RunProducts::Model& RunProducts::model_of(const gpu::Device& device) {
    std::string gpu = gpu::gpu_model(device.ordinal);
    const auto found = std::find_if(
        models_.begin(), models_.end(), [&](const Model& model) { return model.gpu == gpu; });
    if (found != models_.end()) {
        return *found;
    }
    // The first of its model: it is the one that times.
    Model model{.gpu = std::move(gpu),
                .library = kernels::Gemm().version(),
                .first_position = device.position,
                .choices = nullptr,
                .gemms = {}};
    if (way_ == "timed") {
        model.choices = collect_choices(model.gpu, model.library, saved_, folder_);
    }
    return models_.emplace_back(std::move(model));
}

bool RunProducts::times_on(const gpu::Device& device) const {
    const std::lock_guard lock(mutex_);
    return std::any_of(models_.begin(), models_.end(), [&](const Model& model) {
        return model.choices != nullptr && model.first_position == device.position;
    });
}

void RunProducts::seal() {
    const std::lock_guard lock(mutex_);
    for (const Model& model : models_) {
        if (model.choices != nullptr) {
            model.choices->seal();
            if (!folder_.empty()) {
                model.choices->save_to(folder_);
            }
        }
    }
}

std::int64_t RunProducts::num_unforeseen() const {
    const std::lock_guard lock(mutex_);
    std::int64_t count = 0;
    for (const Model& model : models_) {
        for (const auto& gemm : model.gemms) {
            count += gemm->num_unforeseen();
        }
    }
    return count;
}

ProductRecord RunProducts::record() const {
    const std::lock_guard lock(mutex_);
    ProductRecord record;
    record.way = models_.empty() ? std::string() : way_;
    for (const Model& model : models_) {
        record.gpus.push_back({.gpu = model.gpu,
                               .library = model.library,
                               .choices = model.choices == nullptr ? kernels::GemmChoiceMap{}
                                                                   : model.choices->used()});
    }
    return record;
}

std::vector<std::string> RunProducts::to_lines() const {
    const std::string id = record().id();
    const std::lock_guard lock(mutex_);
    std::vector<std::string> lines;
    for (const Model& model : models_) {
        if (way_ == "torch") {
            lines.push_back(fmt::format("by LibTorch on {}", model.gpu));
        } else if (model.choices == nullptr) {
            lines.push_back(
                fmt::format("as cuBLASLt {} guesses them on {}", model.library, model.gpu));
        } else {
            lines.push_back(fmt::format("{}, choice {}", line_of(model), id));
        }
    }
    return lines;
}

std::string RunProducts::line_of(const Model& model) const {
    // Those that are in use: a file of the cache may have classes of other drafters, too.
    std::int64_t faster = 0;
    std::int64_t untimed = 0;
    const kernels::GemmChoiceMap used = model.choices->used();
    for (const auto& [key, choice] : used) {
        faster += choice.algorithm ? 1 : 0;
        untimed += choice.ms == 0 ? 1 : 0;
    }
    double seconds = 0;
    for (const auto& gemm : model.gemms) {
        seconds += gemm->timing_s();
    }
    return fmt::format(
        "{} classes on {}, of which {} have a faster algorithm than cuBLASLt's "
        "guess{}; {} timed now{}",
        used.size(),
        model.gpu,
        faster,
        untimed > 0 ? fmt::format(" and {} were not timed for want of time", untimed) : "",
        model.choices->num_timed(),
        model.choices->num_timed() > 0 ? " in " + format_seconds(seconds) : "");
}

}  // namespace dflash::train
