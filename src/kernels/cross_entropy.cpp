// SPDX-License-Identifier: Apache-2.0
#include "cuda/cross_entropy_arguments.cuh"
#include "row_launch.hpp"

#include <dflash/core/check.hpp>
#include <dflash/kernels/cross_entropy.hpp>

namespace dflash::kernels {
namespace {

constexpr int kThreads = 1024;
constexpr int kVectorBytes = 16;

// What every architecture in use has beside the static shared memory: five stretches of 16 KB.
constexpr int kKept = 5;
constexpr int kUnroll = 1;

}  // namespace

KernelSpec cross_entropy_kernel(Element logits, Element gradient) {
    const bool is_e5m2 = gradient == Element::Float8E5M2;
    DFLASH_CHECK(gradient == Element::BFloat16 || (is_e5m2 && logits == Element::Float32),
                 "gradients in {} of logits in {}",
                 name_of(gradient),
                 name_of(logits));
    return {.source = "cross_entropy.cu",
            .entry = "cross_entropy",
            .constants = {{"LOGITS_FLOAT", is_float(logits)},
                          {"UNROLL", kUnroll},
                          {"KEPT", kKept},
                          {"GRADIENT_E5M2", is_e5m2 ? 1 : 0}},
            .threads = kThreads,
            .dynamic_shared_bytes = kKept * kUnroll * kThreads * kVectorBytes,
            .min_blocks_per_sm = 1};
}

void cross_entropy(const LoadedKernel& kernel,
                   const CrossEntropyTensors& tensors,
                   std::int64_t num_rows,
                   std::int64_t vocabulary,
                   gpu::StreamView stream) {
    check_entry(kernel, "cross_entropy");
    if (num_rows == 0) {
        return;
    }
    const Element logits =
        constant_of(kernel.spec(), "LOGITS_FLOAT") != 0 ? Element::Float32 : Element::BFloat16;
    DFLASH_CHECK(vocabulary > 0, "a vocabulary of {}", vocabulary);
    check_rows(tensors.logits_CV, logits, vocabulary, "logits");
    const RowTensor& gradient = tensors.gradient_CV;
    if (gradient.data != nullptr) {
        const bool is_e5m2 = constant_of(kernel.spec(), "GRADIENT_E5M2") != 0;
        const Element element = is_e5m2 ? Element::Float8E5M2 : Element::BFloat16;
        check_rows(gradient, element, vocabulary, "gradient of the logits");
        DFLASH_CHECK(!is_e5m2 || tensors.gradient_scale_C != nullptr,
                     "a gradient in e5m2 without its scales");
        DFLASH_CHECK(gradient.data != tensors.logits_CV.data ||
                         gradient.row_stride * size_of(element) ==
                             tensors.logits_CV.row_stride * size_of(logits),
                     "gradient rows {} elements apart in the place of logits {} apart",
                     gradient.row_stride,
                     tensors.logits_CV.row_stride);
    }
    DFLASH_CHECK(tensors.label_C != nullptr && tensors.cross_entropy_C != nullptr &&
                     tensors.argmax_C != nullptr,
                 "labels, cross-entropy and argmax are needed");
    static_assert(sizeof(long long) == sizeof(std::int64_t));
    launch_with(
        kernel,
        Dim3{narrow<std::uint32_t>(num_rows), 1, 1},
        CrossEntropyArguments{.logits_CV = tensors.logits_CV.data,
                              .label_C = reinterpret_cast<const long long*>(tensors.label_C),
                              .cross_entropy_C = tensors.cross_entropy_C,
                              .argmax_C = reinterpret_cast<long long*>(tensors.argmax_C),
                              .gradient_CV = gradient.data,
                              .gradient_scale_C = tensors.gradient_scale_C,
                              .logits_stride = tensors.logits_CV.row_stride,
                              .gradient_stride = gradient.row_stride,
                              .vocabulary = narrow<int>(vocabulary)},
        stream);
}

}  // namespace dflash::kernels
