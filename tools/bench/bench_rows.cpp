// SPDX-License-Identifier: Apache-2.0
// Times the row-wise kernels (norms, rotary embedding, activation) on one GPU.
//
//     bench_rows [--peak GBPS] [--runs N] [M,T,H,I,Q,K,D]
//
// M block rows, T context rows, H hidden size, I inner size, Q and K heads of size D. Without
// sizes: those of a drafter for Qwen3-8B. Times are medians over N runs by CUDA events, each the
// mean of several launches one after another. "Warm" launches repeat on the same memory, "cold"
// ones walk over copies of it that do not fit into the L2 cache together. Bytes are what must be
// read and written once.
#include <dflash/core/error.hpp>
#include <dflash/core/random.hpp>
#include <dflash/gpu/check.hpp>
#include <dflash/gpu/device.hpp>
#include <dflash/gpu/stream.hpp>
#include <dflash/kernels/head_norm.hpp>
#include <dflash/kernels/kernel_builder.hpp>
#include <dflash/kernels/kernel_cache.hpp>
#include <dflash/kernels/kernel_driver.hpp>
#include <dflash/kernels/rms_norm.hpp>
#include <dflash/kernels/swiglu.hpp>

#include <algorithm>
#include <bit>
#include <charconv>
#include <cstdlib>
#include <cuda_runtime_api.h>
#include <deque>
#include <exception>
#include <fmt/format.h>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace dflash::kernels {
namespace {

constexpr Element kBf16 = Element::BFloat16;
constexpr Element kFp32 = Element::Float32;

struct Sizes {
    std::int64_t M = 8192, T = 4096, H = 4096, I = 12288, Q = 32, K = 8, D = 128;
};

struct Options {
    double peak_gbps = 4300;  // a copy on an H200, bytes read and written
    int runs = 15;
    Sizes sizes;
};

double number(std::string_view text) {
    double value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size()) {
        throw Error(ErrorKind::Config,
                    {.what = fmt::format("got '{}', expected a number", text),
                     .where = "command line",
                     .cause = {},
                     .hint = "bench_rows [--peak GBPS] [--runs N] [M,T,H,I,Q,K,D]"});
    }
    return value;
}

Options parse(int argc, char** argv) {
    Options options;
    for (int i = 1; i < argc; ++i) {
        const std::string_view argument = argv[i];
        const std::string_view value = i + 1 < argc ? argv[i + 1] : "";
        if (argument == "--peak") {
            options.peak_gbps = number(value);
            ++i;
        } else if (argument == "--runs") {
            options.runs = static_cast<int>(number(value));
            ++i;
        } else {
            Sizes& s = options.sizes;
            std::string_view rest = argument;
            for (std::int64_t* field : {&s.M, &s.T, &s.H, &s.I, &s.Q, &s.K, &s.D}) {
                const std::size_t comma = std::min(rest.find(','), rest.size());
                *field = static_cast<std::int64_t>(number(rest.substr(0, comma)));
                rest.remove_prefix(std::min(comma + 1, rest.size()));
            }
        }
    }
    return options;
}

/// Device memory of one case, filled with random numbers, which are normal whether they are read as
/// bf16 or as fp32.
class Memory {
  public:
    Memory() {
        RandomStream random(1, Purpose::Test, 0, 0);
        for (std::uint16_t& value : block_) {
            const auto bits = std::bit_cast<std::uint32_t>(static_cast<float>(random.normal()));
            value = static_cast<std::uint16_t>(bits >> 16);
        }
    }

    void* take(std::int64_t bytes) {
        void* data = nullptr;
        gpu::check(cudaMalloc(&data, static_cast<std::size_t>(bytes)));
        pieces_.push_back(data);
        const auto block = static_cast<std::int64_t>(block_.size() * 2);
        gpu::check(cudaMemcpy(data,
                              block_.data(),
                              static_cast<std::size_t>(std::min(block, bytes)),
                              cudaMemcpyHostToDevice));
        for (std::int64_t at = block; at < bytes; at += block) {
            gpu::check(cudaMemcpyAsync(static_cast<char*>(data) + at,
                                       data,
                                       static_cast<std::size_t>(std::min(block, bytes - at)),
                                       cudaMemcpyDeviceToDevice));
        }
        gpu::check(cudaDeviceSynchronize());
        return data;
    }

    RowTensor rows(std::int64_t count, std::int64_t columns, Element element = kBf16) {
        return {take(count * columns * (element == kFp32 ? 4 : 2)), columns, element};
    }

    float* floats(std::int64_t count) { return static_cast<float*>(take(count * 4)); }

    void free_all() {
        for (void* piece : pieces_) {
            gpu::check(cudaFree(piece));
        }
        pieces_.clear();
    }

  private:
    std::vector<std::uint16_t> block_ = std::vector<std::uint16_t>(std::size_t{1} << 20);
    std::vector<void*> pieces_;
};

/// A tensor's part of a row, as the kernels see joined projections.
RowTensor columns_from(const RowTensor& tensor, std::int64_t begin) {
    return {static_cast<char*>(tensor.data) + begin * (tensor.element == kFp32 ? 4 : 2),
            tensor.row_stride,
            tensor.element};
}

using Work = std::function<void()>;

class Bench {
  public:
    explicit Bench(const Options& options)
        : options_(options),
          device_(gpu::parse_devices("0").front()),
          builder_(SourceSet::embedded(), CacheOptions{.folder = cache_folder()}),
          driver_(make_cuda_driver()) {
        gpu::check(cudaEventCreate(&begin_));
        gpu::check(cudaEventCreate(&end_));
        gpu::check(cudaDeviceGetAttribute(
            &num_multiprocessors_, cudaDevAttrMultiProcessorCount, device_.ordinal));
    }

    /// Builds many kernels in parallel.
    void prepare(const std::vector<KernelSpec>& specs) {
        std::vector<KernelRequest> requests;
        for (const KernelSpec& spec : merge_kernels({specs})) {
            if (std::none_of(built_.begin(), built_.end(), [&](const BuiltKernel& kernel) {
                    return kernel.request.spec == spec;
                })) {
                requests.push_back({spec, driver_->architecture(device_)});
            }
        }
        for (BuiltKernel& kernel : builder_.build(requests)) {
            built_.push_back(std::move(kernel));
            loaded_.emplace_back(
                built_.back().request.spec, driver_->load(built_.back(), device_), device_.ordinal);
        }
    }

    void print_head() const {
        fmt::print(
            "| kernel | MB | cold us | warm us | GB/s cold | % of {} | registers |\n"
            "| --- | --- | --- | --- | --- | --- | --- |\n",
            options_.peak_gbps);
    }

    /// What the memory gives a plain copy.
    void copy() {
        constexpr std::int64_t kBytes = std::int64_t{512} << 20;
        measure("cudaMemcpy", 2 * kBytes, nullptr, [this]() -> Work {
            void* const from = memory_.take(kBytes);
            void* const to = memory_.take(kBytes);
            return [this, from, to] {
                gpu::check(cudaMemcpyAsync(
                    to, from, kBytes, cudaMemcpyDeviceToDevice, stream_.view().handle()));
            };
        });
    }

    void rms_forward(const std::string& name,
                     const KernelSpec& spec,
                     std::int64_t rows,
                     bool known = false) {
        const std::int64_t hidden = options_.sizes.H;
        const bool is_float = spec_constant(spec, "X_FLOAT") != 0;
        const bool residual = spec_constant(spec, "RESIDUAL") != 0;
        measure(name,
                rows * hidden *
                    (is_float   ? 6
                     : residual ? 8
                                : 4),
                &spec,
                [&]() -> Work {
                    RmsNormForwardTensors t{
                        .x_RH = memory_.rows(rows, hidden, is_float ? kFp32 : kBf16),
                        .y_RH = memory_.rows(rows, hidden),
                        .weight_H = memory_.take(2 * hidden)};
                    (known ? t.known_inverse_rms_R = memory_.floats(rows)
                           : t.inverse_rms_R = memory_.floats(rows));
                    if (residual) {
                        t.residual_RH = memory_.rows(rows, hidden);
                    }
                    return [this, &spec, t, rows] {
                        rms_norm_forward(kernel(spec), t, rows, 1e-6, stream_.view());
                    };
                });
    }

    /// `extra`: bf16 outputs besides dx, 0 to 2.
    void rms_backward(const std::string& name,
                      const KernelSpec& spec,
                      std::int64_t rows,
                      int extra,
                      std::int64_t waves = 1) {
        const std::int64_t hidden = options_.sizes.H;
        const auto element = [&](const char* constant) {
            return spec_constant(spec, constant) != 0 ? kFp32 : kBf16;
        };
        const Element x = element("X_FLOAT");
        const Element dy = element("DY_FLOAT");
        const Element dx = element("DX_FLOAT");
        const auto size = [](Element e) { return e == kFp32 ? 4 : 2; };
        const int dx_passes = spec_constant(spec, "ADD") != 0 ? 2 : 1;
        const std::int64_t bytes =
            rows * hidden * (size(x) + size(dy) + dx_passes * size(dx) + 2 * extra);
        measure(name, bytes, &spec, [&]() -> Work {
            const WeightPartials partials =
                partials_of(weight_partials_count(spec, num_multiprocessors_) * waves, hidden);
            const RmsNormBackwardTensors t{
                .dy_RH = memory_.rows(rows, hidden, dy),
                .x_RH = memory_.rows(rows, hidden, x),
                .weight_H = memory_.take(2 * hidden),
                .inverse_rms_R = memory_.floats(rows),
                .dx_RH = memory_.rows(rows, hidden, dx),
                .dx_rounded_RH = extra > 0 ? memory_.rows(rows, hidden) : RowTensor{},
                .y_RH = extra > 1 ? memory_.rows(rows, hidden) : RowTensor{},
                .dweight_H = memory_.floats(hidden)};
            return [this, &spec, t, rows, partials] {
                rms_norm_backward(kernel(spec),
                                  kernel(norm_weight_gradient_kernel()),
                                  t,
                                  rows,
                                  partials,
                                  stream_.view());
            };
        });
    }

    void head_forward(const std::string& name,
                      const KernelSpec& spec,
                      std::int64_t rows,
                      std::int64_t heads) {
        const std::int64_t dim = options_.sizes.D;
        const std::int64_t joined = (options_.sizes.Q + 2 * options_.sizes.K) * dim;
        const std::int64_t bytes = rows * (heads * (dim * 4 + 4) + dim * 4);
        measure(name, bytes, &spec, [&]() -> Work {
            const HeadNormForwardTensors t{
                .x_RND = columns_from(memory_.rows(rows, joined), dim),
                .y_RND = memory_.rows(rows, heads * dim),
                .weight_D = memory_.take(2 * dim),
                .rotary = {memory_.floats(rows * dim / 2), memory_.floats(rows * dim / 2), dim / 2},
                .inverse_rms_RN =
                    spec_constant(spec, "NORM") != 0 ? memory_.floats(rows * heads) : nullptr};
            return [this, &spec, t, rows, heads] {
                head_norm_forward(kernel(spec), t, rows, heads, 1e-6, stream_.view());
            };
        });
    }

    void head_backward(const std::string& name,
                       const KernelSpec& spec,
                       std::int64_t rows,
                       std::int64_t heads,
                       std::int64_t waves = 1) {
        const std::int64_t dim = options_.sizes.D;
        const std::int64_t joined = (options_.sizes.Q + 2 * options_.sizes.K) * dim;
        const Element dy = spec_constant(spec, "DY_FLOAT") != 0 ? kFp32 : kBf16;
        const std::int64_t bytes = rows * (heads * (dim * (dy == kFp32 ? 8 : 6) + 4) + dim * 4);
        measure(name, bytes, &spec, [&]() -> Work {
            const WeightPartials partials =
                partials_of(weight_partials_count(spec, num_multiprocessors_) * waves, dim);
            const HeadNormBackwardTensors t{
                .dy_RND = memory_.rows(rows, heads * dim, dy),
                .x_RND = columns_from(memory_.rows(rows, joined), dim),
                .weight_D = memory_.take(2 * dim),
                .inverse_rms_RN = memory_.floats(rows * heads),
                .rotary = {memory_.floats(rows * dim / 2), memory_.floats(rows * dim / 2), dim / 2},
                .dx_RND = columns_from(memory_.rows(rows, joined), dim),
                .dweight_D = memory_.floats(dim)};
            return [this, &spec, t, rows, heads, partials] {
                head_norm_backward(kernel(spec),
                                   kernel(norm_weight_gradient_kernel()),
                                   t,
                                   rows,
                                   heads,
                                   partials,
                                   stream_.view());
            };
        });
    }

    void activation(const std::string& name,
                    const KernelSpec& spec,
                    std::int64_t rows,
                    bool with_y = false) {
        const std::int64_t inner = options_.sizes.I;
        const bool forward = spec.entry == "swiglu_forward";
        const std::int64_t bytes = rows * inner * (forward ? 6 : with_y ? 12 : 10);
        measure(name, bytes, &spec, [&]() -> Work {
            const RowTensor gate_up = memory_.rows(rows, 2 * inner);
            const RowTensor y = memory_.rows(rows, inner);
            if (forward) {
                return [this, &spec, gate_up, y, rows, inner] {
                    swiglu_forward(kernel(spec),
                                   {gate_up, columns_from(gate_up, inner), y},
                                   rows,
                                   inner,
                                   stream_.view());
                };
            }
            const RowTensor dy = memory_.rows(rows, inner);
            const RowTensor dgate_up = memory_.rows(rows, 2 * inner);
            const SwigluBackwardTensors t{.dy_RI = dy,
                                          .gate_RI = gate_up,
                                          .up_RI = columns_from(gate_up, inner),
                                          .dgate_RI = dgate_up,
                                          .dup_RI = columns_from(dgate_up, inner),
                                          .y_RI = with_y ? y : RowTensor{}};
            return [this, &spec, t, rows, inner] {
                swiglu_backward(kernel(spec), t, rows, inner, stream_.view());
            };
        });
    }

  private:
    static std::string cache_folder() {
        const char* const folder = std::getenv("DFLASH_KERNEL_CACHE");
        return folder != nullptr ? folder : default_cache_root() + "/kernels";
    }

    static std::int64_t spec_constant(const KernelSpec& spec, std::string_view name) {
        const auto found =
            std::find_if(spec.constants.begin(), spec.constants.end(), [&](const auto& constant) {
                return constant.first == name;
            });
        return found == spec.constants.end() ? 0 : found->second;
    }

    const LoadedKernel& kernel(const KernelSpec& spec) const {
        return *std::find_if(loaded_.begin(), loaded_.end(), [&](const LoadedKernel& kernel) {
            return kernel.spec() == spec;
        });
    }

    WeightPartials partials_of(std::int64_t count, std::int64_t columns) {
        return {memory_.floats(count * columns), count};
    }

    /// Mean of launches one after another, in us; median over the runs.
    double median_us(const std::vector<Work>& works) {
        constexpr int kLaunches = 16;
        std::vector<double> times;
        for (int run = -2; run < options_.runs; ++run) {
            gpu::check(cudaEventRecord(begin_, stream_.view().handle()));
            for (std::size_t i = 0; i < kLaunches; ++i) {
                works[i % works.size()]();
            }
            gpu::check(cudaEventRecord(end_, stream_.view().handle()));
            gpu::check(cudaEventSynchronize(end_));
            float ms = 0;
            gpu::check(cudaEventElapsedTime(&ms, begin_, end_));
            if (run >= 0) {
                times.push_back(double{ms} * 1e3 / kLaunches);
            }
        }
        std::nth_element(times.begin(),
                         times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2),
                         times.end());
        return times[times.size() / 2];
    }

    void measure(const std::string& name,
                 std::int64_t bytes,
                 const KernelSpec* spec,
                 const std::function<Work()>& make) {
        constexpr std::int64_t kColdBytes = std::int64_t{1} << 30;
        if (spec != nullptr) {
            prepare({*spec, norm_weight_gradient_kernel()});
        }
        std::vector<Work> works;
        do {
            works.push_back(make());
        } while (static_cast<std::int64_t>(works.size()) * bytes < kColdBytes);
        const double cold = median_us(works);
        const double warm = median_us({works.front()});
        const double rate = static_cast<double>(bytes) / cold * 1e-3;
        int registers = 0;
        for (const BuiltKernel& built : built_) {
            if (spec != nullptr && built.request.spec == *spec) {
                registers = built.binary.resources.registers;
            }
        }
        fmt::print("| {} | {:.0f} | {:.1f} | {:.1f} | {:.0f} | {:.1f} | {} |\n",
                   name,
                   static_cast<double>(bytes) * 1e-6,
                   cold,
                   warm,
                   rate,
                   100 * rate / options_.peak_gbps,
                   registers);
        std::fflush(stdout);
        memory_.free_all();
    }

    const Options& options_;
    gpu::Device device_;
    gpu::Stream stream_;
    KernelBuilder builder_;
    std::unique_ptr<KernelDriver> driver_;
    Memory memory_;
    std::deque<BuiltKernel> built_;
    std::deque<LoadedKernel> loaded_;
    cudaEvent_t begin_ = nullptr;
    cudaEvent_t end_ = nullptr;
    int num_multiprocessors_ = 0;
};

void run_all(const Options& options) {
    const Sizes& s = options.sizes;
    const KernelSpec forward = rms_norm_forward_kernel({.hidden = s.H});
    const KernelSpec forward_fp32 = rms_norm_forward_kernel({.hidden = s.H, .x = kFp32});
    const KernelSpec residual = rms_norm_forward_kernel({.hidden = s.H, .add_to_residual = true});
    const KernelSpec layer =
        rms_norm_backward_kernel({.hidden = s.H, .dy = kFp32, .dx = kFp32, .add = true});
    const KernelSpec layer_bf16 =
        rms_norm_backward_kernel({.hidden = s.H, .dx = kFp32, .add = true});
    const KernelSpec head = rms_norm_backward_kernel({.hidden = s.H, .dy = kFp32, .dx = kFp32});
    const KernelSpec context =
        rms_norm_backward_kernel({.hidden = s.H, .x = kFp32, .dy = kFp32, .dx = kBf16});
    const KernelSpec head_norm = head_norm_forward_kernel({s.D, 0}, true);
    const KernelSpec turn = head_norm_forward_kernel({s.D, 0}, false);
    const KernelSpec head_bf16 = head_norm_backward_kernel({s.D, 0}, kBf16);
    const KernelSpec head_fp32 = head_norm_backward_kernel({s.D, 0}, kFp32);
    const KernelSpec gate = swiglu_forward_kernel();
    const KernelSpec gate_backward = swiglu_backward_kernel();

    Bench bench(options);
    bench.prepare({forward,
                   forward_fp32,
                   residual,
                   layer,
                   layer_bf16,
                   head,
                   context,
                   head_norm,
                   turn,
                   head_bf16,
                   head_fp32,
                   gate,
                   gate_backward,
                   norm_weight_gradient_kernel()});
    bench.print_head();
    bench.copy();
    bench.rms_forward("RMSNorm forward", forward, s.M);
    bench.rms_forward("RMSNorm forward again", forward, s.M, /*known=*/true);
    bench.rms_forward("RMSNorm forward, residual", residual, s.M);
    bench.rms_forward("RMSNorm forward, fp32 x, T rows", forward_fp32, s.T);
    bench.rms_backward("RMSNorm backward, fp32 dy, adds", layer, s.M, 0);
    bench.rms_backward("the same and dx rounded", layer, s.M, 1);
    bench.rms_backward("the same and y again", layer, s.M, 2);
    bench.rms_backward("RMSNorm backward, bf16 dy, adds, dx rounded", layer_bf16, s.M, 1);
    bench.rms_backward("RMSNorm backward, fp32 dy", head, s.M, 0);
    bench.rms_backward("RMSNorm backward, fp32 x and dy, bf16 dx, T rows", context, s.T, 0);
    bench.head_forward("head norm and rotation, Q heads", head_norm, s.M, s.Q);
    bench.head_forward("head norm and rotation, K heads", head_norm, s.M, s.K);
    bench.head_forward("rotation, Q heads", turn, s.M, s.Q);
    bench.head_backward("head backward, bf16 dy, Q heads", head_bf16, s.M, s.Q);
    bench.head_backward("head backward, bf16 dy, K heads", head_bf16, s.M, s.K);
    bench.head_backward("head backward, fp32 dy, Q heads", head_fp32, s.M, s.Q);
    bench.activation("SwiGLU forward", gate, s.M);
    bench.activation("SwiGLU backward", gate_backward, s.M);
    bench.activation("SwiGLU backward, y again", gate_backward, s.M, /*with_y=*/true);
}

int run(int argc, char** argv) {
    const Options options = parse(argc, argv);
    if (gpu::cuda_device_count() == 0) {
        fmt::print(stderr, "no GPU\n");
        return 1;
    }
    run_all(options);
    return 0;
}

}  // namespace
}  // namespace dflash::kernels

int main(int argc, char** argv) {
    try {
        return dflash::kernels::run(argc, argv);
    } catch (const std::exception& error) {
        fmt::print(stderr, "{}\n", error.what());
        return 1;
    }
}
