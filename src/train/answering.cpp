// SPDX-License-Identifier: Apache-2.0
#include <dflash/core/error.hpp>
#include <dflash/core/text.hpp>
#include <dflash/tensor/bridge.hpp>
#include <dflash/train/answering.hpp>
#include <dflash/train/torch_worker.hpp>
#include <dflash/train/watchdog.hpp>

#include <algorithm>
#include <fmt/format.h>
#include <map>
#include <thread>

namespace dflash::train {
namespace {

constexpr std::int64_t kMostSlotsCuda = 256;
constexpr std::int64_t kMostSlotsCpu = 16;
constexpr std::int64_t kPrefillTokensCuda = 8192;
constexpr std::int64_t kPrefillTokensCpu = 512;
// How often the thread that waits looks up.
constexpr std::chrono::milliseconds kLook(200);

}  // namespace

Answering::Answering(const RunText& text,
                     AnsweringOptions options,
                     Whereabouts& whereabouts,
                     Watchdog& watchdog)
    : config_(text.target),
      options_(std::move(options)),
      failure_watch_(first_error_.on_error([&] { watchdog.run_failed(first_error_.get()); })),
      kernels_(options_.devices, text.target, options_.cache, first_error_),
      wake_(first_error_.on_error([this] {
          const std::lock_guard lock(mutex_);
          stopping_ = true;
          ended_.notify_all();
      })) {
    set_up_torch_process();
    const bool enough_cores = std::thread::hardware_concurrency() >= options_.devices.size();
    for (const gpu::Device& device : options_.devices) {
        workers_.push_back(std::make_unique<gpu::Worker>(
            device,
            first_error_,
            gpu::WorkerOptions{.on_start = [device] { set_up_torch(device); },
                               .pin = enough_cores}));
        whereabouts.add_worker(
            {.role = "answers", .rank = std::nullopt, .board = workers_.back()->board()});
    }
    kernels_.prepare(workers_);
    load(text.location.folder);
    make_generators();
    kernels_.seal();
}

// What CUDA made for a generator goes on the thread that made it. After a failure that thread takes
// no tasks any more, and has to end before anything goes that it may still use.
Answering::~Answering() {
    stopping_ = true;
    for (std::size_t i = 0; i < generators_.size() && !first_error_.failed(); ++i) {
        try {
            workers_[i]->call({"end"}, [&] { generators_[i].reset(); });
        } catch (...) {
            break;
        }
    }
    workers_.clear();
}

void Answering::load(const std::string& folder) {
    target::LoadOptions options;
    options.with_head = true;
    for (const auto& worker : workers_) {
        options.device = tensor::torch_device(worker->device());
        options.dtype = compute_dtype(worker->device());
        options.row_ops = kernels_.make_row_ops(worker->device());
        // The first replica reads the files; the others take the tensors from it.
        models_.push_back(worker->call({"load the target"}, [&] {
            auto model = models_.empty()
                             ? target::load_target(folder, options)
                             : target::replicate(*models_.front(), options.device, options.row_ops);
            synchronize_stream(worker->device());
            return model;
        }));
    }
}

std::int64_t Answering::slots_on(const gpu::Device& device, Bytes free) const {
    const std::int64_t capacity = options_.capacity;
    const at::ScalarType dtype = compute_dtype(device);
    const Bytes slot_bytes = capacity * target::cache_bytes_per_token(config_, dtype);
    // Logits, their probabilities and sums of a sequence, and what a layer needs for it.
    const Bytes step_bytes = config_.vocab_size * 40 + target::activation_bytes(config_, 1, dtype);
    const std::int64_t prefill = device.is_cuda() ? kPrefillTokensCuda : kPrefillTokensCpu;
    const Bytes fixed = 2 * target::activation_bytes(config_, prefill, dtype) + free / 16;
    const std::int64_t fit = (free - fixed) / (slot_bytes + step_bytes);
    const std::int64_t most = device.is_cuda() ? kMostSlotsCuda : kMostSlotsCpu;
    const std::int64_t wanted = options_.batch.value_or(std::min(most, fit));
    if (fit < 1 || wanted > fit) {
        throw Error(ErrorKind::Config,
                    {.what = fmt::format("{} answers of {} tokens at a time need {}, {} are free "
                                         "beside the weights",
                                         std::max<std::int64_t>(1, wanted),
                                         capacity,
                                         format_bytes(std::max<std::int64_t>(1, wanted) *
                                                      (slot_bytes + step_bytes)),
                                         format_bytes(std::max<Bytes>(0, free - fixed))),
                     .where = device.name,
                     .cause = {},
                     .hint = "Make generate.batch, generate.max_new_tokens or "
                             "generate.max_prompt_tokens smaller"});
    }
    return wanted;
}

void Answering::make_generators() {
    // Logical devices on one physical device share what is free, as it is before the first of them
    // takes anything.
    std::map<std::string, int> sharing;
    for (const auto& worker : workers_) {
        ++sharing[tensor::torch_device(worker->device()).str()];
    }
    std::vector<Bytes> free;
    for (const auto& worker : workers_) {
        free.push_back(gpu::memory_of(worker->device()).free_bytes /
                       sharing[tensor::torch_device(worker->device()).str()]);
    }
    for (std::size_t i = 0; i < workers_.size(); ++i) {
        const gpu::Device& device = workers_[i]->device();
        slots_.push_back(slots_on(device, free[i]));
        target::GeneratorOptions options{
            .slots = slots_.back(),
            .capacity = options_.capacity,
            .prefill_tokens = device.is_cuda() ? kPrefillTokensCuda : kPrefillTokensCpu,
            .stop_tokens = options_.stop_tokens};
        generators_.push_back(workers_[i]->call({"prepare to answer"}, [&] {
            auto generator = std::make_unique<target::Generator>(*models_[i], std::move(options));
            synchronize_stream(device);
            return generator;
        }));
    }
}

std::int64_t Answering::slots() const {
    std::int64_t sum = 0;
    for (const std::int64_t slots : slots_) {
        sum += slots;
    }
    return sum;
}

double Answering::tokens_per_second() {
    double sum = 0;
    for (std::size_t i = 0; i < workers_.size(); ++i) {
        sum += workers_[i]->call({"time a step"}, [&] {
            const double seconds = generators_[i]->time_step();
            return static_cast<double>(slots_[i]) / std::max(seconds, 1e-9);
        });
    }
    return sum;
}

void Answering::start(ResponseSource& source) {
    running_ = workers_.size();
    for (std::size_t i = 0; i < workers_.size(); ++i) {
        workers_[i]->post({"answer prompts"}, [this, i, &source] {
            generators_[i]->run(
                [&source] { return source.next(); },
                [&source](target::Generation generation) { source.take(std::move(generation)); },
                [this] { return stopping_.load(); });
            const std::lock_guard lock(mutex_);
            --running_;
            ended_.notify_all();
        });
    }
}

// Whether all have ended.
bool Answering::wait() {
    std::unique_lock lock(mutex_);
    ended_.wait_for(lock, kLook, [&] { return running_ == 0 || first_error_.failed(); });
    lock.unlock();
    first_error_.rethrow_if_failed();
    lock.lock();
    return running_ == 0;
}

void Answering::run(ResponseSource& source,
                    const StopSignals& signals,
                    const std::function<void()>& look) {
    start(source);
    while (!wait()) {
        if (signals.stop_requested()) {
            stopping_ = true;
        }
        if (look) {
            look();
        }
    }
}

void Answering::with_first(
    const char* what, const std::function<void(target::TargetModel&, target::Generator&)>& use) {
    workers_.front()->call({what}, [&] { use(*models_.front(), *generators_.front()); });
}

std::int64_t Answering::tokens_chosen() const {
    std::int64_t sum = 0;
    for (const auto& generator : generators_) {
        sum += generator->tokens_chosen();
    }
    return sum;
}

}  // namespace dflash::train
