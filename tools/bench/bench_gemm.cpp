// SPDX-License-Identifier: Apache-2.0
// Times the products of one training step of a drafter on the first GPU: as LibTorch makes them,
// and with the algorithms that cuBLASLt proposes, each by itself.
//
//     bench_gemm [--model NAME] [--runs N] [--candidates N] [TOKENS,DOCUMENTS,ANCHORS]
//
// Times are medians by CUDA events of products one after another on random data. "First" is what
// cuBLASLt thinks the fastest, "best" what is. Products in fp8 have no time of LibTorch's; without
// an algorithm ("of" is 0) the GPU has none with a scale for each row.
#include "step_case.hpp"

#include <dflash/core/error.hpp>
#include <dflash/gpu/check.hpp>
#include <dflash/gpu/device.hpp>
#include <dflash/kernels/gemm.hpp>
#include <dflash/tensor/bridge.hpp>
#include <dflash/tensor/linear.hpp>
#include <dflash/train/torch_worker.hpp>

#include <algorithm>
#include <charconv>
#include <cuda_runtime_api.h>
#include <exception>
#include <fmt/format.h>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace dflash::bench {
namespace {

using kernels::Element;
using kernels::GemmAlgorithm;
using kernels::GemmMatrices;
using kernels::GemmShape;

struct Options {
    std::string model = "qwen3-8b";
    int runs = 5;
    int candidates = 16;
    RowSize row;
};

struct Product {
    std::string name;
    GemmShape shape;
    double count = 1;            // in a step
    std::int64_t a_columns = 0;  // of A's rows in memory; 0: as many as it has
    std::int64_t d_columns = 0;
};

std::vector<Product> products(const model::DraftConfig& config, const data::PackedRow& row) {
    const std::int64_t T = row.num_tokens();
    const std::int64_t M = row.blocks.num_blocks() * config.block_size;
    const std::int64_t H = config.hidden_size;
    const std::int64_t I = config.intermediate_size;
    const std::int64_t V = config.vocab_size;
    const std::int64_t q = config.num_heads * config.head_dim;
    const std::int64_t kv = 2 * config.num_kv_heads * config.head_dim;
    constexpr std::int64_t kChunk = 1024;
    const double layers = static_cast<double>(config.num_layers());
    const double features = static_cast<double>(config.num_features());
    const double chunks = static_cast<double>(row.blocks.head_rows.size()) / double{kChunk};
    const auto forward = [](std::int64_t m, std::int64_t n, std::int64_t k, Element e, bool add) {
        return GemmShape{m, n, k, false, true, e, add};
    };
    const auto input = [](std::int64_t m, std::int64_t n, std::int64_t k, Element e, bool add) {
        return GemmShape{m, n, k, false, false, e, add};
    };
    const auto weight = [](std::int64_t m, std::int64_t n, std::int64_t k) {
        return GemmShape{m, n, k, true, false, Element::Float32, true};
    };
    const auto float8 = [](std::int64_t m, std::int64_t n, std::int64_t k, Element a, bool fast) {
        return GemmShape{.m = m,
                         .n = n,
                         .k = k,
                         .b_transposed = true,
                         .result = Element::Float32,
                         .a = a,
                         .b = Element::Float8E4M3,
                         .fast_sums = fast};
    };
    constexpr Element kBf16 = Element::BFloat16;
    constexpr Element kFp32 = Element::Float32;
    constexpr Element kE4M3 = Element::Float8E4M3;
    constexpr Element kE5M2 = Element::Float8E5M2;
    return {
        {"qkv", forward(M, q + kv, H, kBf16, false), layers},
        {"context k, v", forward(T, kv, H, kBf16, false), layers},
        {"o", forward(M, H, q, kBf16, true), layers},
        {"gate, up", forward(M, 2 * I, H, kBf16, false), layers},
        {"down", forward(M, H, I, kBf16, true), layers},
        {"fc", forward(T, H, H, kFp32, true), features},
        {"head", forward(kChunk, V, H, kFp32, false), chunks},
        {"head, bf16 logits", forward(kChunk, V, H, kBf16, false), 0},
        {"head, 2048 rows", forward(2 * kChunk, V, H, kFp32, false), 0},
        {"dX head", input(kChunk, H, V, kFp32, false), chunks, 2 * V},
        {"dX head, 2048 rows", input(2 * kChunk, H, V, kFp32, false), 0, 2 * V},
        {"head, fp8", float8(kChunk, V, H, kE4M3, false), 0},
        {"head, fp8, fast sums", float8(kChunk, V, H, kE4M3, true), 0},
        {"head, fp8, 2048 rows", float8(2 * kChunk, V, H, kE4M3, false), 0},
        {"dX head, fp8", float8(kChunk, H, V, kE5M2, false), 0, 4 * V},
        {"dX head, fp8, fast sums", float8(kChunk, H, V, kE5M2, true), 0, 4 * V},
        {"dX down", input(M, I, H, kBf16, false), layers},
        {"dX gate, up", input(M, H, 2 * I, kFp32, false), layers},
        {"dX o", input(M, q, H, kBf16, false), layers},
        {"dX context k, v", input(T, H, kv, kFp32, true), layers},
        {"dX qkv", input(M, H, q + kv, kFp32, false), layers},
        {"dW down", weight(H, I, M), layers},
        {"dW gate, up", weight(2 * I, H, M), layers},
        {"dW o", weight(H, q, M), layers},
        {"dW context k, v", weight(kv, H, T), layers},
        {"dW qkv", weight(q + kv, H, M), layers},
        {"dW fc", weight(H, H, T), features, 0, config.num_features() * H},
    };
}

at::ScalarType dtype_of(Element element) {
    switch (element) {
        case Element::Float32:
            return at::kFloat;
        case Element::Float8E4M3:
            return at::kFloat8_e4m3fn;
        case Element::Float8E5M2:
            return at::kFloat8_e5m2;
        case Element::BFloat16:
            break;
    }
    return at::kBFloat16;
}

kernels::RowTensor rows_of(const at::Tensor& x, Element element) {
    return {x.data_ptr(), x.stride(0), element};
}

class Bench {
  public:
    explicit Bench(const Options& options)
        : options_(options), device_(at::kCUDA, 0), stream_(tensor::current_stream(device_)) {
        gpu::check(cudaEventCreate(&begin_));
        gpu::check(cudaEventCreate(&end_));
        workspace_ = at::empty({kWorkspaceBytes}, at::TensorOptions(device_).dtype(at::kByte));
    }

    void run(const std::vector<Product>& all) {
        fmt::print(
            "cuBLASLt {}, {}\n\n"
            "| product | shape | a step | LibTorch ms | first ms | best ms | place | of | "
            "TFLOP/s |\n| --- | --- | --- | --- | --- | --- | --- | --- | --- |\n",
            gemm_.version(),
            options_.model);
        double torch = 0;
        double first = 0;
        double best = 0;
        for (const Product& product : all) {
            const Times times = measure(product);
            torch += product.count * times.torch;
            first += product.count * times.first;
            best += product.count * times.best;
            const GemmShape& s = product.shape;
            const double flop =
                2 * static_cast<double>(s.m) * static_cast<double>(s.n) * static_cast<double>(s.k);
            fmt::print("| {} | {} | {:.2f} | {:.3f} | {:.3f} | {:.3f} | {} | {} | {:.0f} |\n",
                       product.name,
                       s.id(),
                       product.count,
                       times.torch,
                       times.first,
                       times.best,
                       times.place,
                       times.count,
                       flop / times.best * 1e-9);
            std::fflush(stdout);
        }
        fmt::print("| **all** | | | {:.1f} | {:.1f} | {:.1f} | | | |\n", torch, first, best);
    }

  private:
    struct Times {
        double torch = 0;
        double first = 0;
        double best = 0;
        std::size_t place = 0;
        std::size_t count = 0;
    };

    at::Tensor matrix(std::int64_t rows,
                      std::int64_t columns,
                      std::int64_t columns_in_memory,
                      Element element) const {
        const std::int64_t stride = columns_in_memory == 0 ? columns : columns_in_memory;
        const bool wide = element == Element::Float32;
        return at::randn({rows, stride},
                         at::TensorOptions(device_).dtype(wide ? at::kFloat : at::kBFloat16))
            .mul_(kernels::is_float8(element) ? 50 : 0.05)
            .to(dtype_of(element))
            .narrow(1, 0, columns);
    }

    Times measure(const Product& product) {
        const GemmShape& s = product.shape;
        const at::Tensor a =
            s.a_transposed ? matrix(s.k, s.m, 0, s.a) : matrix(s.m, s.k, product.a_columns, s.a);
        const at::Tensor b = s.b_transposed ? matrix(s.n, s.k, 0, s.b) : matrix(s.k, s.n, 0, s.b);
        const at::Tensor d = matrix(s.m, s.n, product.d_columns, s.result);
        const at::Tensor scales =
            at::ones({std::max(s.m, s.n)}, at::TensorOptions(device_).dtype(at::kFloat));
        Times times;
        const auto by_torch = [&] {
            if (s.a_transposed) {
                tensor::linear_backward_weight_add(d, a, b);
            } else if (s.b_transposed) {
                s.add ? tensor::linear_add(d, a, b) : tensor::linear_out(d, a, b);
            } else {
                s.add ? tensor::linear_backward_input_add(d, a, b)
                      : tensor::linear_backward_input_out(d, a, b);
            }
        };
        times.torch = kernels::is_float8(s.a) ? 0 : median_ms(by_torch);
        const GemmMatrices matrices{.a = rows_of(a, s.a),
                                    .b = rows_of(b, s.b),
                                    .c = rows_of(d, s.result),
                                    .d = rows_of(d, s.result),
                                    .a_scale = scales.data_ptr<float>(),
                                    .b_scale = scales.data_ptr<float>()};
        const std::vector<GemmAlgorithm> algorithms =
            gemm_.candidates(s, matrices, options_.candidates, kWorkspaceBytes);
        times.count = algorithms.size();
        for (std::size_t i = 0; i < algorithms.size(); ++i) {
            const double ms = median_ms([&] {
                gemm_.multiply(algorithms[i], s, matrices, workspace_.data_ptr(), stream_);
            });
            if (i == 0) {
                times.first = ms;
            }
            if (i == 0 || ms < times.best) {
                times.best = ms;
                times.place = i;
            }
        }
        return times;
    }

    double median_ms(const std::function<void()>& task) const {
        constexpr int kWarmUp = 2;
        std::vector<double> times;
        for (int run = -kWarmUp; run < options_.runs; ++run) {
            gpu::check(cudaEventRecord(begin_, stream_.handle()));
            task();
            gpu::check(cudaEventRecord(end_, stream_.handle()));
            gpu::check(cudaEventSynchronize(end_));
            float ms = 0;
            gpu::check(cudaEventElapsedTime(&ms, begin_, end_));
            if (run >= 0) {
                times.push_back(double{ms});
            }
        }
        const auto middle = times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2);
        std::nth_element(times.begin(), middle, times.end());
        return *middle;
    }

    static constexpr std::int64_t kWorkspaceBytes = std::int64_t{32} << 20;

    const Options& options_;
    at::Device device_;
    gpu::StreamView stream_;
    kernels::Gemm gemm_;
    at::Tensor workspace_;
    cudaEvent_t begin_ = nullptr;
    cudaEvent_t end_ = nullptr;
};

std::int64_t number(std::string_view text) {
    std::int64_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size() || value < 1) {
        throw Error(ErrorKind::Config,
                    {.what = fmt::format("got '{}', expected a number from 1", text),
                     .where = "command line",
                     .cause = {},
                     .hint = "bench_gemm [--model NAME] [--runs N] [--candidates N] "
                             "[TOKENS,DOCUMENTS,ANCHORS]"});
    }
    return value;
}

Options parse(int argc, char** argv) {
    Options options;
    for (int i = 1; i < argc; ++i) {
        const std::string_view argument = argv[i];
        const std::string_view value = i + 1 < argc ? argv[i + 1] : "";
        if (argument == "--model") {
            options.model = value;
            ++i;
        } else if (argument == "--runs") {
            options.runs = static_cast<int>(number(value));
            ++i;
        } else if (argument == "--candidates") {
            options.candidates = static_cast<int>(number(value));
            ++i;
        } else {
            std::string_view rest = argument;
            RowSize& row = options.row;
            for (std::int64_t* field : {&row.tokens, &row.documents, &row.anchors}) {
                const std::size_t comma = std::min(rest.find(','), rest.size());
                *field = number(rest.substr(0, comma));
                rest.remove_prefix(std::min(comma + 1, rest.size()));
            }
        }
    }
    return options;
}

void run(int argc, char** argv) {
    const Options options = parse(argc, argv);
    const gpu::Device device = gpu::parse_devices("0").front();
    train::set_up_torch_process();
    train::set_up_torch(device);
    const model::DraftConfig config = preset(options.model);
    Bench(options).run(products(config, make_row(config, options.row)));
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
