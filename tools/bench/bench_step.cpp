// SPDX-License-Identifier: Apache-2.0
// Times one training step of a drafter: the objects that training uses, with random weights and
// features.
//
//     bench_step [--device cuda:0|cpu:1] [--model qwen3-8b|27b|smollm2|tiny] [--config FILE]
//                [--full-attention] [--runs N] [--peak TFLOPS] [--table] [--no-optimizer]
//                [--products torch|guessed|timed] [--dpace] [--recompute LAYERS]
//                [--head bf16|fp8-logits|fp8] [--json FILE] [TOKENS,DOCUMENTS,ANCHORS ...]
//
// Anchors are counted over all documents of a row. "Forward + backward" is one row, with its
// uploads; the optimizer's step comes once in train.rows_per_step rows. Times are medians over N
// runs after three that do not count, by CUDA events on a GPU, by the clock on the CPU. Memory is
// the largest sum of LibTorch's blocks in use: weights, gradients, embedding, head, features,
// activations, and with the optimizer its state. --table says where the time of one more row went,
// as CUPTI records it (which slows the row a little), GPUs only. --products is train.products;
// timed products are timed in the first row, which does not count, and what that took is said;
// those of a head in fp8 are guessed with LibTorch's. --json adds a line of JSON for every row to
// FILE, for tools/plot_step.
//
// Buffers grow with the rows and are kept, so the memory of a row means something only if none
// before it was larger.
#include "step_case.hpp"
#include "step_profile.hpp"

#include <dflash/core/error.hpp>
#include <dflash/gpu/check.hpp>
#include <dflash/gpu/device.hpp>
#include <dflash/io/json.hpp>
#include <dflash/kernels/compile_barrier.hpp>
#include <dflash/kernels/kernel_cache.hpp>
#include <dflash/model/drafter.hpp>
#include <dflash/model/kernel_attention.hpp>
#include <dflash/tensor/bridge.hpp>
#include <dflash/tensor/kernel_row_ops.hpp>
#include <dflash/train/optimizer.hpp>
#include <dflash/train/run_kernels.hpp>
#include <dflash/train/settings.hpp>
#include <dflash/train/torch_worker.hpp>

#include <algorithm>
#include <c10/cuda/CUDACachingAllocator.h>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <cuda_runtime_api.h>
#include <exception>
#include <fmt/format.h>
#include <fstream>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace dflash::bench {
namespace {

constexpr const char* kUsage =
    "bench_step [--device cuda:0|cpu:1] [--model NAME] [--config FILE] [--full-attention] "
    "[--runs N] [--peak TFLOPS] [--table] [--no-optimizer] "
    "[--products torch|guessed|timed] [--dpace] [--recompute LAYERS] "
    "[--head bf16|fp8-logits|fp8] [--json FILE] [TOKENS,DOCUMENTS,ANCHORS ...]";
constexpr int kWarmUp = 3;
constexpr double kGiB = 1 << 30;

struct Options {
    std::string device = "cuda:0";
    std::string model = "qwen3-8b";
    std::string config;
    bool full_attention = false;
    int runs = 15;
    double peak_tflops = 790;  // cuBLAS on an H200, bf16, random data
    bool table = false;
    bool optimizer = true;
    std::string products = train::TrainSettings{}.products;
    bool dpace = false;
    std::int64_t recompute_layers = 0;
    std::string head = "bf16";
    std::string json;
    std::vector<RowSize> rows;
};

[[noreturn]] void refuse(std::string_view got, std::string_view expected) {
    throw Error(ErrorKind::Config,
                {.what = fmt::format("got '{}', expected {}", got, expected),
                 .where = "command line",
                 .cause = {},
                 .hint = kUsage});
}

std::int64_t number(std::string_view text) {
    std::int64_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size() || value < 1) {
        refuse(text, "a number from 1");
    }
    return value;
}

RowSize row_size(std::string_view text) {
    RowSize size;
    std::string_view rest = text;
    for (std::int64_t* field : {&size.tokens, &size.documents, &size.anchors}) {
        const std::size_t comma = std::min(rest.find(','), rest.size());
        *field = number(rest.substr(0, comma));
        rest.remove_prefix(std::min(comma + 1, rest.size()));
    }
    return size;
}

Options parse(int argc, char** argv) {
    Options options;
    for (int i = 1; i < argc; ++i) {
        const std::string_view argument = argv[i];
        const auto value = [&]() -> std::string_view {
            if (i + 1 == argc) {
                refuse(argument, "a value after it");
            }
            return argv[++i];
        };
        if (argument == "--device") {
            options.device = value();
        } else if (argument == "--model") {
            options.model = value();
        } else if (argument == "--config") {
            options.config = value();
        } else if (argument == "--full-attention") {
            options.full_attention = true;
        } else if (argument == "--runs") {
            options.runs = static_cast<int>(number(value()));
        } else if (argument == "--peak") {
            options.peak_tflops = static_cast<double>(number(value()));
        } else if (argument == "--table") {
            options.table = true;
        } else if (argument == "--no-optimizer") {
            options.optimizer = false;
        } else if (argument == "--products") {
            options.products = value();
            if (options.products != "torch" && options.products != "guessed" &&
                options.products != "timed") {
                refuse(options.products, "torch, guessed or timed");
            }
        } else if (argument == "--dpace") {
            options.dpace = true;
        } else if (argument == "--recompute") {
            options.recompute_layers = number(value());
        } else if (argument == "--head") {
            options.head = value();
            if (options.head != "bf16" && options.head != "fp8-logits" && options.head != "fp8") {
                refuse(options.head, "bf16, fp8-logits or fp8");
            }
        } else if (argument == "--json") {
            options.json = value();
        } else if (argument.starts_with("-")) {
            refuse(argument, "one of the options below");
        } else {
            options.rows.push_back(row_size(argument));
        }
    }
    if (options.rows.empty()) {
        options.rows.push_back({});
    }
    return options;
}

gpu::Device device_of(const Options& options) {
    const std::string_view name = options.device;
    const std::size_t colon = name.find(':');
    const std::string_view number_of = name.substr(std::min(name.size(), colon + 1));
    if (name.starts_with("cpu:")) {
        return gpu::parse_devices(name).front();
    }
    if (!name.starts_with("cuda:")) {
        refuse(name, "cuda:N or cpu:N");
    }
    return gpu::parse_devices(number_of).front();
}

model::DraftConfig config_of(const Options& options) {
    model::DraftConfig config =
        options.config.empty()
            ? preset(options.model)
            : model::DraftConfig::from_json(io::read_json_file(options.config), options.config);
    if (options.full_attention) {
        std::fill(config.layer_types.begin(), config.layer_types.end(), model::LayerType::Full);
    }
    config.validate(options.config.empty() ? options.model : options.config);
    return config;
}

/// The median of a task's times, in ms. On a GPU tasks follow one another without a gap, as rows do
/// in training: the host is up to two ahead.
class Clock {
  public:
    explicit Clock(const gpu::Device& device) : device_(device) {}

    double median_ms(int runs, const std::function<void()>& task) const {
        std::vector<double> times =
            device_.is_cuda() ? by_events(kWarmUp + runs, task) : by_clock(kWarmUp + runs, task);
        times.erase(times.begin(), times.begin() + kWarmUp);
        const auto middle = times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2);
        std::nth_element(times.begin(), middle, times.end());
        return *middle;
    }

  private:
    std::vector<double> by_events(int runs, const std::function<void()>& task) const {
        const cudaStream_t stream = train::current_stream(device_).handle();
        std::vector<cudaEvent_t> events(static_cast<std::size_t>(runs) + 1);
        for (cudaEvent_t& event : events) {
            gpu::check(cudaEventCreate(&event));
        }
        gpu::check(cudaEventRecord(events[0], stream));
        for (std::size_t i = 1; i < events.size(); ++i) {
            task();
            gpu::check(cudaEventRecord(events[i], stream));
            if (i > 1) {
                gpu::check(cudaEventSynchronize(events[i - 2]));
            }
        }
        gpu::check(cudaEventSynchronize(events.back()));
        std::vector<double> times;
        for (std::size_t i = 1; i < events.size(); ++i) {
            float ms = 0;
            gpu::check(cudaEventElapsedTime(&ms, events[i - 1], events[i]));
            times.push_back(double{ms});
        }
        for (const cudaEvent_t event : events) {
            gpu::check(cudaEventDestroy(event));
        }
        return times;
    }

    static std::vector<double> by_clock(int runs, const std::function<void()>& task) {
        std::vector<double> times;
        for (int run = 0; run < runs; ++run) {
            const auto begin = std::chrono::steady_clock::now();
            task();
            const auto end = std::chrono::steady_clock::now();
            times.push_back(std::chrono::duration<double, std::milli>(end - begin).count());
        }
        return times;
    }

    gpu::Device device_;
};

/// A drafter with random weights, and its optimizer.
class Bench {
  public:
    Bench(const Options& options, const gpu::Device& device)
        : options_(options),
          device_(device),
          on_(tensor::torch_device(device)),
          config_(config_of(options)),
          head_(model::head_precision(options.head)),
          clock_(device),
          builder_(kernels::SourceSet::embedded(),
                   kernels::cache_options_in(kernels::default_cache_root())),
          driver_(device.is_cuda() ? kernels::make_cuda_driver() : nullptr),
          barrier_({{device, /*drafts=*/true}}, builder_, driver_.get(), first_error_) {
        barrier_.require("drafter", [this](const kernels::Architecture& architecture) {
            return kernels::drafter_kernels(train::kernel_shape(config_, head_), architecture);
        });
        barrier_.arrive(device_);
        if (device_.is_cuda()) {
            find_kernel_ = [this](const kernels::KernelSpec& spec) {
                return barrier_.kernel(spec, device_);
            };
        }
        if (device_.is_cuda() && options.products != "torch") {
            if (options.products == "timed") {
                choices_ = std::make_shared<kernels::GemmChoices>("this one", "any");
            }
            gemm_ = std::make_shared<kernels::TunedGemm>(choices_);
        }
        at::manual_seed(1);
        const at::TensorOptions weights = tensor_options();
        drafter_ = std::make_unique<model::Drafter>(
            config_,
            model::FrozenEnds{
                at::randn({config_.vocab_size, config_.hidden_size}, weights).mul_(0.02),
                at::randn({config_.vocab_size, config_.hidden_size}, weights).mul_(0.02)},
            on_,
            train::compute_dtype(device_),
            paths(),
            model::DraftWeights::Use::Training,
            model::LossWeights{.kind = options.dpace ? model::SlotWeighting::Dpace
                                                     : model::SlotWeighting::Packed},
            options.recompute_layers,
            head_);
        for (std::size_t i = 0; i < drafter_->weights().specs().size(); ++i) {
            const at::Tensor weight = drafter_->weights().weight(static_cast<std::int64_t>(i));
            if (weight.dim() == 1) {
                weight.fill_(1);
            } else {
                weight.normal_(0, config_.initializer_range);
            }
        }
        resident_gib_ = allocated_gib([](const auto& stats) { return stats.current; });
    }

    void print_head() const {
        fmt::print(
            "{}, {}: {} parameters, head in {}\n\n"
            "| tokens | documents | anchors | head rows | TFLOP | ms | context tokens/s | TFLOP/s "
            "| "
            "% of {:.0f} | GiB |\n"
            "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n",
            options_.config.empty() ? options_.model : options_.config,
            gpu::describe(device_),
            model::num_parameters(config_),
            options_.head,
            options_.peak_tflops);
    }

    void forward_backward(const RowSize& size) {
        const data::PackedRow row = make_row(config_, size);
        const at::Tensor features_KTH = at::randn(
            {config_.num_features(), row.num_tokens(), config_.hidden_size}, tensor_options());
        const auto task = [&] { drafter_->forward_backward(row, features_KTH); };
        restart_memory();
        const double ms = clock_.median_ms(options_.runs, task);
        const Flops flops = count_flops(config_, row);
        const double tflops = flops.total() * 1e-9 / ms;
        fmt::print("| {} | {} | {} | {} | {:.3g} | {:.2f} | {:.0f} | {:.1f} | {:.1f} | {} |\n",
                   row.num_tokens(),
                   size.documents,
                   row.blocks.num_blocks(),
                   row.blocks.head_rows.size(),
                   flops.total() * 1e-12,
                   ms,
                   static_cast<double>(row.num_tokens()) * 1e3 / ms,
                   tflops,
                   100 * tflops / options_.peak_tflops,
                   memory_text());
        if (!options_.json.empty()) {
            append_json(size, row, features_KTH.nbytes(), flops, ms);
        }
        if (options_.table && device_.is_cuda()) {
            print_table("forward + backward", task);
        }
        drafter_->weights().gradient_flat().zero_();
    }

    /// On the standard error: the table ends with its last row.
    void print_products() const {
        if (choices_ != nullptr) {
            std::int64_t faster = 0;
            std::int64_t untimed = 0;
            for (const auto& [key, choice] : choices_->used()) {
                faster += choice.algorithm ? 1 : 0;
                untimed += choice.ms == 0 ? 1 : 0;
            }
            fmt::print(
                stderr,
                "products: {} classes timed in {:.1f} s, {} of them faster than the guess, {} "
                "not timed\n",
                choices_->num_timed(),
                gemm_->timing_s(),
                faster,
                untimed);
        }
    }

    void optimizer_step() {
        train::AdamW optimizer(drafter_->weights(), {}, find_kernel_);
        const at::Tensor gradients = drafter_->weights().gradient_flat();
        gradients.normal_(0, 1e-3);
        restart_memory();
        // As DrafterRank::finish_step ends a step: the sums start again from zero.
        const auto task = [&] {
            optimizer.step(gradients, 1.0, 1e-5);
            gradients.zero_();
        };
        const double ms = clock_.median_ms(options_.runs, task);
        fmt::print("\noptimizer's step: {:.2f} ms, {} GiB\n", ms, memory_text());
        if (options_.table && device_.is_cuda()) {
            print_table("optimizer", task);
        }
    }

  private:
    at::TensorOptions tensor_options() const {
        return at::TensorOptions(on_).dtype(train::compute_dtype(device_));
    }

    model::DrafterPaths paths() const {
        if (!device_.is_cuda()) {
            return model::make_torch_paths(on_);
        }
        return {std::make_unique<model::KernelAttention>(
                    config_, on_, barrier_.architecture(device_), find_kernel_),
                std::make_unique<tensor::KernelRowOps>(on_, find_kernel_, gemm_),
                find_kernel_};
    }

    void restart_memory() const {
        if (device_.is_cuda()) {
            c10::cuda::CUDACachingAllocator::emptyCache();
            c10::cuda::CUDACachingAllocator::resetPeakStats(on_.index());
        }
    }

    std::string memory_text() const {
        if (!device_.is_cuda()) {
            return "-";
        }
        return fmt::format("{:.2f}", allocated_gib([](const auto& stats) { return stats.peak; }));
    }

    /// 0 on the CPU.
    template <typename Choose>
    double allocated_gib(const Choose& choose) const {
        if (!device_.is_cuda()) {
            return 0;
        }
        const auto stats = c10::cuda::CUDACachingAllocator::getDeviceStats(on_.index());
        return static_cast<double>(choose(stats.allocated_bytes[0])) / kGiB;
    }

    void append_json(const RowSize& size,
                     const data::PackedRow& row,
                     std::size_t feature_bytes,
                     const Flops& flops,
                     double ms) const {
        io::Json line = io::Json::object();
        line.set("model",
                 io::Json::string(options_.config.empty() ? options_.model : options_.config));
        line.set("device", io::Json::string(gpu::describe(device_)));
        line.set("loss_weights", io::Json::string(options_.dpace ? "dpace" : "decay"));
        line.set("head", io::Json::string(options_.head));
        line.set("tokens", io::Json::integer(row.num_tokens()));
        line.set("documents", io::Json::integer(size.documents));
        line.set("anchors", io::Json::integer(row.blocks.num_blocks()));
        line.set("head_rows", io::Json::integer(std::ssize(row.blocks.head_rows)));
        line.set("tflop", io::Json::number(flops.total() * 1e-12));
        line.set("peak_tflops", io::Json::number(options_.peak_tflops));
        line.set("ms", io::Json::number(ms));
        line.set("gib",
                 io::Json::number(allocated_gib([](const auto& stats) { return stats.peak; })));
        line.set("resident_gib",
                 io::Json::number(resident_gib_ + static_cast<double>(feature_bytes) / kGiB));
        std::ofstream file(options_.json, std::ios::app);
        file << line.dump() << '\n';
        if (!file.flush()) {
            throw Error(
                ErrorKind::Storage,
                {.what = "cannot be written", .where = options_.json, .cause = {}, .hint = {}});
        }
    }

    void print_table(const char* what, const std::function<void()>& task) const {
        const Profile result = profile([&] {
            task();
            train::synchronize_stream(device_);
        });
        fmt::print(
            "\n{}: {:.2f} ms from the first kernel to the last, idle {:.2f} ms\n\n"
            "| part | ms | % |\n| --- | --- | --- |\n",
            what,
            result.span_ms,
            result.span_ms - result.busy_ms);
        for (const PartTime& part : result.parts) {
            fmt::print(
                "| {} | {:.3f} | {:.1f} |\n", part.part, part.ms, 100 * part.ms / result.span_ms);
        }
        fmt::print("\n| kernel | part | launches | ms |\n| --- | --- | --- | --- |\n");
        constexpr std::size_t kMostKernels = 24;
        constexpr std::size_t kMostLetters = 90;
        for (std::size_t i = 0; i < std::min(result.kernels.size(), kMostKernels); ++i) {
            const KernelTime& kernel = result.kernels[i];
            fmt::print("| {} | {} | {} | {:.3f} |\n",
                       kernel.name.substr(0, kMostLetters),
                       kernel.part,
                       kernel.count,
                       kernel.ms);
        }
        fmt::print("\n");
    }

    const Options& options_;
    gpu::Device device_;
    at::Device on_;
    model::DraftConfig config_;
    model::HeadPrecision head_;
    Clock clock_;
    FirstError first_error_;
    kernels::KernelBuilder builder_;
    std::unique_ptr<kernels::KernelDriver> driver_;
    kernels::CompileBarrier barrier_;
    kernels::FindKernel find_kernel_;                // empty on the CPU
    std::shared_ptr<kernels::GemmChoices> choices_;  // of timed products
    std::shared_ptr<kernels::TunedGemm> gemm_;
    std::unique_ptr<model::Drafter> drafter_;
    double resident_gib_ = 0;  // weights, gradients, embedding, head
};

void run(int argc, char** argv) {
    const Options options = parse(argc, argv);
    const gpu::Device device = device_of(options);
    train::set_up_torch_process();
    train::set_up_torch(device);
    Bench bench(options, device);
    bench.print_head();
    for (const RowSize& size : options.rows) {
        bench.forward_backward(size);
        std::fflush(stdout);
    }
    bench.print_products();
    if (options.optimizer) {
        bench.optimizer_step();
    }
}

}  // namespace
}  // namespace dflash::bench

int main(int argc, char** argv) {
    try {
        dflash::bench::run(argc, argv);
        return 0;
    } catch (const std::exception& error) {
        fmt::print(stderr, "{}\n", error.what());
        return 1;
    }
}
