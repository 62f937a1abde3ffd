// SPDX-License-Identifier: Apache-2.0
// Times the attention kernels on one GPU.
//
//     bench_attention [--peak TFLOPS] [--runs N] [L,N,B,H,HKV,D,DOCS[,WINDOW]]...
//
// L context tokens in DOCS documents of equal length, N anchors at random (sorted), blocks of B, H
// query heads, HKV key heads of size D. Without cases: those of results/h200.md. Times are medians
// over N runs by CUDA events; "warm" runs follow one another, before a "cold" one 512 MiB are
// written, so that nothing is left in the L2 cache. FLOPs count visible (query, key) pairs only:
// S, P V forward; S, dP, dV, dK for the context and S, dP, dQ for the queries. Bytes are what must
// be read and written once.
#include <dflash/core/error.hpp>
#include <dflash/core/random.hpp>
#include <dflash/gpu/check.hpp>
#include <dflash/gpu/device.hpp>
#include <dflash/gpu/stream.hpp>
#include <dflash/kernels/attention.hpp>
#include <dflash/kernels/kernel_builder.hpp>
#include <dflash/kernels/kernel_cache.hpp>
#include <dflash/kernels/kernel_driver.hpp>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <cuda_runtime_api.h>
#include <exception>
#include <fmt/format.h>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace dflash::kernels {
namespace {

struct Case {
    std::int64_t tokens = 0;
    std::int64_t anchors = 0;
    std::int64_t block_size = 0;
    std::int64_t heads = 0;
    std::int64_t key_heads = 0;
    std::int64_t head_dim = 0;
    std::int64_t documents = 1;
    std::int64_t window = 0;
};

struct Options {
    double peak_tflops = 790;  // bf16 products on an H200, measured with cuBLAS
    int runs = 20;
    std::vector<Case> cases;
};

constexpr Case kStandardCases[] = {
    {4096, 512, 16, 32, 8, 128, 1},
    {3072, 512, 16, 32, 8, 128, 1},
    {8192, 512, 16, 32, 8, 128, 1},
    {4096, 512, 16, 32, 8, 256, 1},
    {4096, 512, 16, 32, 8, 128, 8},
    {8192, 1024, 16, 32, 8, 128, 4},
    {8192, 1024, 16, 32, 8, 128, 16},
    {4096, 512, 16, 32, 8, 64, 1},
    {8192, 512, 16, 32, 8, 128, 1, 2048},
};

[[noreturn]] void refuse(const std::string& what) {
    throw Error(ErrorKind::Config,
                {.what = what,
                 .where = "command line",
                 .cause = {},
                 .hint = "bench_attention [--peak TFLOPS] [--runs N] "
                         "[L,N,B,H,HKV,D,DOCS[,WINDOW]]..."});
}

template <typename T>
T number(std::string_view text) {
    T value{};
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size()) {
        refuse(fmt::format("got '{}', expected a number", text));
    }
    return value;
}

Case parse_case(std::string_view text) {
    Case c;
    std::int64_t* const fields[] = {&c.tokens,
                                    &c.anchors,
                                    &c.block_size,
                                    &c.heads,
                                    &c.key_heads,
                                    &c.head_dim,
                                    &c.documents,
                                    &c.window};
    const std::string_view whole = text;
    for (std::int64_t* field : fields) {
        const std::size_t comma = std::min(text.find(','), text.size());
        if (comma > 0) {
            *field = number<std::int64_t>(text.substr(0, comma));
        }
        text.remove_prefix(std::min(comma + 1, text.size()));
    }
    const bool counts = c.tokens >= 2 && c.anchors >= 1 && c.anchors < c.tokens &&
                        c.block_size >= 1 && c.key_heads >= 1 && c.heads >= c.key_heads &&
                        c.heads % c.key_heads == 0 && c.head_dim >= 1 && c.documents >= 1 &&
                        c.documents <= c.tokens && c.window >= 0;
    if (!text.empty() || !counts) {
        refuse(
            fmt::format("got '{}', expected seven or eight numbers with L > N >= 1, H a multiple "
                        "of HKV and 1 <= DOCS <= L",
                        whole));
    }
    return c;
}

Options parse(int argc, char** argv) {
    Options options;
    for (int i = 1; i < argc; ++i) {
        const std::string_view argument = argv[i];
        const std::string_view value = i + 1 < argc ? argv[i + 1] : "";
        if (argument == "--peak") {
            options.peak_tflops = number<double>(value);
            ++i;
        } else if (argument == "--runs") {
            options.runs = number<int>(value);
            if (options.runs < 1) {
                refuse(fmt::format("--runs: got {}, expected 1 or more", options.runs));
            }
            ++i;
        } else {
            options.cases.push_back(parse_case(argument));
        }
    }
    if (options.cases.empty()) {
        options.cases.assign(std::begin(kStandardCases), std::end(kStandardCases));
    }
    return options;
}

/// Device memory, never freed: the program is short.
template <typename T>
T* device_array(const std::vector<T>& values) {
    void* data = nullptr;
    gpu::check(cudaMalloc(&data, values.size() * sizeof(T)));
    gpu::check(cudaMemcpy(data, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice));
    return static_cast<T*>(data);
}

void* device_memory(std::int64_t bytes) {
    void* data = nullptr;
    gpu::check(cudaMalloc(&data, static_cast<std::size_t>(bytes)));
    return data;
}

/// Nearly normal bf16 values. Random, because zeros would let the chip clock higher.
void* random_tensor(std::int64_t count, std::uint64_t seed) {
    RandomStream stream(seed, Purpose::Test, 0, 0);
    std::vector<std::uint16_t> block(std::size_t{1} << 20);
    for (std::uint16_t& value : block) {
        const auto bits = std::bit_cast<std::uint32_t>(static_cast<float>(stream.normal()));
        value = static_cast<std::uint16_t>(bits >> 16);
    }
    auto* const data = static_cast<char*>(device_memory(count * 2));
    const std::int64_t block_bytes = static_cast<std::int64_t>(block.size() * 2);
    for (std::int64_t at = 0; at < count * 2; at += block_bytes) {
        gpu::check(cudaMemcpy(data + at,
                              block.data(),
                              static_cast<std::size_t>(std::min(block_bytes, count * 2 - at)),
                              cudaMemcpyHostToDevice));
    }
    return data;
}

class Stopwatch {
  public:
    explicit Stopwatch(gpu::StreamView stream) : stream_(stream) {
        gpu::check(cudaEventCreate(&begin_));
        gpu::check(cudaEventCreate(&end_));
        flush_ = device_memory(kFlushBytes);
    }

    /// Median of `runs`, in ms, after three runs that do not count.
    double median_ms(int runs, bool cold, const std::function<void()>& work) const {
        std::vector<float> times;
        for (int run = -3; run < runs; ++run) {
            if (cold) {
                gpu::check(cudaMemsetAsync(flush_, run & 0xff, kFlushBytes, stream_.handle()));
            }
            gpu::check(cudaEventRecord(begin_, stream_.handle()));
            work();
            gpu::check(cudaEventRecord(end_, stream_.handle()));
            gpu::check(cudaEventSynchronize(end_));
            float ms = 0;
            gpu::check(cudaEventElapsedTime(&ms, begin_, end_));
            if (run >= 0) {
                times.push_back(ms);
            }
        }
        std::nth_element(times.begin(),
                         times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2),
                         times.end());
        return double{times[times.size() / 2]};
    }

  private:
    static constexpr std::int64_t kFlushBytes = std::int64_t{512} << 20;
    gpu::StreamView stream_;
    cudaEvent_t begin_ = nullptr;
    cudaEvent_t end_ = nullptr;
    void* flush_ = nullptr;
};

struct Part {
    std::string name;
    double tflop = 0;
    double gigabytes = 0;
    std::function<void()> work;
};

class Bench {
  public:
    explicit Bench(const Options& options)
        : options_(options),
          device_(gpu::parse_devices("0").front()),
          watch_(stream_.view()),
          builder_(SourceSet::embedded(), CacheOptions{.folder = cache_folder()}),
          driver_(make_cuda_driver()) {}

    void run(const Case& c) {
        const AttentionShape shape{.head_dim = static_cast<int>(c.head_dim),
                                   .group = static_cast<int>(c.heads / c.key_heads),
                                   .block_size = static_cast<int>(c.block_size),
                                   .causal = c.window > 0,
                                   .windowed = c.window > 0};
        const AttentionKernels kernels = load(shape);

        RandomStream random(1, Purpose::Test, 0, 1);
        std::vector<std::int32_t> anchors;
        std::vector<std::int32_t> context_begin;
        const std::int64_t document = c.tokens / c.documents;
        std::int64_t pairs = 0;
        for (const std::uint64_t drawn : random.sample_sorted(
                 static_cast<std::uint64_t>(c.tokens - 1), static_cast<std::uint64_t>(c.anchors))) {
            const auto anchor = static_cast<std::int64_t>(drawn);
            const std::int64_t begin = anchor / document * document;
            anchors.push_back(static_cast<std::int32_t>(anchor));
            context_begin.push_back(static_cast<std::int32_t>(begin));
            for (std::int64_t slot = 0; slot < c.block_size; ++slot) {
                const std::int64_t context = anchor - begin;
                pairs += c.window > 0 ? std::clamp<std::int64_t>(c.window - 1 - slot, 0, context)
                                      : context;
                pairs += c.window > 0 ? slot + 1 : c.block_size;
            }
        }
        const AttentionSchedule schedule =
            make_attention_schedule(shape, anchors, context_begin, c.tokens, c.window);
        const AttentionProblem problem{.shape = shape,
                                       .num_key_heads = c.key_heads,
                                       .window = c.window,
                                       .schedule = &schedule,
                                       .device_schedule = device_array(schedule.packed())};
        const std::int64_t block_tokens = c.anchors * c.block_size;
        const std::int64_t query = block_tokens * c.heads * c.head_dim;
        const std::int64_t context = c.tokens * c.key_heads * c.head_dim;
        const std::int64_t block = block_tokens * c.key_heads * c.head_dim;
        const auto random_of = [&](std::int64_t count, std::int64_t heads, std::uint64_t seed) {
            return HeadTensor::contiguous(random_tensor(count, seed), heads, c.head_dim);
        };
        const auto empty_of = [&](std::int64_t count, std::int64_t heads) {
            return HeadTensor::contiguous(device_memory(count * 2), heads, c.head_dim);
        };
        const AttentionInputTensors in{.q = random_of(query, c.heads, 1),
                                       .k_context = random_of(context, c.key_heads, 2),
                                       .v_context = random_of(context, c.key_heads, 3),
                                       .k_block = random_of(block, c.key_heads, 4),
                                       .v_block = random_of(block, c.key_heads, 5)};
        const HeadTensor d_o = random_of(query, c.heads, 6);
        const AttentionGradientTensors out{.dq = empty_of(query, c.heads),
                                           .dk_context = empty_of(context, c.key_heads),
                                           .dv_context = empty_of(context, c.key_heads),
                                           .dk_block = empty_of(block, c.key_heads),
                                           .dv_block = empty_of(block, c.key_heads)};
        const AttentionResultTensors result{
            .o = empty_of(query, c.heads),
            .o_rest = empty_of(query, c.heads),
            .lse_MQ = static_cast<float*>(device_memory(block_tokens * c.heads * 4))};
        void* const terms = device_memory(attention_row_terms_bytes(block_tokens, c.heads));

        const gpu::StreamView stream = stream_.view();
        const double tflop = 1e-12 * static_cast<double>(pairs * c.heads * c.head_dim);
        const auto gigabytes =
            [&](std::int64_t queries, std::int64_t contexts, std::int64_t blocks) {
                return 2e-9 *
                       static_cast<double>(queries * query + contexts * context + blocks * block);
            };
        const auto forward = [&] { attention_forward(kernels, problem, in, result, stream); };
        const auto row_terms = [&] {
            attention_row_terms(kernels, problem, result, d_o, terms, stream);
        };
        const auto of_context = [&] {
            attention_context_gradient(kernels, problem, in, d_o, terms, out, stream);
        };
        const auto of_queries = [&] {
            attention_query_gradient(kernels, problem, in, d_o, terms, out, stream);
        };
        const Part parts[] = {
            {"forward", kForwardFlopsPerDim * tflop, gigabytes(3, 2, 2), forward},
            {"row terms", 0, gigabytes(3, 0, 0), row_terms},
            {"dK, dV of context",
             kContextGradientFlopsPerDim * tflop,
             gigabytes(2, 4, 0),
             of_context},
            {"dQ; dK, dV of blocks",
             kQueryGradientFlopsPerDim * tflop,
             gigabytes(3, 2, 4),
             of_queries},
            {"forward + backward",
             18 * tflop,
             gigabytes(11, 8, 6),
             [&] {
                 forward();
                 row_terms();
                 of_context();
                 of_queries();
             }},
        };
        forward();
        for (const Part& part : parts) {
            const double warm = watch_.median_ms(options_.runs, false, part.work);
            const double cold = watch_.median_ms(options_.runs, true, part.work);
            const double rate = part.tflop / warm * 1e3;
            fmt::print("| {}, {}, {}, {}{} | {} | {:.3f} | {:.3f} | {:.0f} | {:.0f} | {:.1f} |\n",
                       c.tokens,
                       c.anchors,
                       c.documents,
                       c.head_dim,
                       c.window > 0 ? fmt::format(", w {}", c.window) : "",
                       part.name,
                       warm,
                       cold,
                       rate,
                       part.gigabytes / warm * 1e3,
                       100 * rate / options_.peak_tflops);
        }
        std::fflush(stdout);
    }

  private:
    static std::string cache_folder() {
        const char* const folder = std::getenv("DFLASH_KERNEL_CACHE");
        return folder != nullptr ? folder : default_cache_root() + "/kernels";
    }

    AttentionKernels load(const AttentionShape& shape) {
        std::vector<KernelRequest> requests;
        const Architecture architecture = driver_->architecture(device_);
        for (const KernelSpec& spec : attention_kernels(shape, architecture)) {
            requests.push_back({spec, architecture});
        }
        auto& built = *built_.emplace_back(
            std::make_unique<std::vector<BuiltKernel>>(builder_.build(requests)));
        const auto loaded = [&](std::size_t i) {
            return LoadedKernel(
                built[i].request.spec, driver_->load(built[i], device_), device_.ordinal);
        };
        return {loaded(0), loaded(1), loaded(2), loaded(3)};
    }

    const Options& options_;
    gpu::Device device_;
    gpu::Stream stream_;
    Stopwatch watch_;
    KernelBuilder builder_;
    std::unique_ptr<KernelDriver> driver_;
    std::vector<std::unique_ptr<std::vector<BuiltKernel>>> built_;
};

}  // namespace
}  // namespace dflash::kernels

int main(int argc, char** argv) {
    try {
        const dflash::kernels::Options options = dflash::kernels::parse(argc, argv);
        if (dflash::gpu::cuda_device_count() == 0) {
            fmt::print(stderr, "no GPU\n");
            return 1;
        }
        dflash::kernels::Bench bench(options);
        fmt::print(
            "| L, N, documents, D | kernel | warm ms | cold ms | TFLOP/s | GB/s | % of {} |\n",
            options.peak_tflops);
        fmt::print("| --- | --- | --- | --- | --- | --- | --- |\n");
        for (const dflash::kernels::Case& c : options.cases) {
            bench.run(c);
        }
        return 0;
    } catch (const std::exception& error) {
        fmt::print(stderr, "{}\n", error.what());
        return 1;
    }
}
