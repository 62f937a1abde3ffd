// SPDX-License-Identifier: Apache-2.0
// Products of matrices on a GPU by cuBLASLt, with an algorithm that the caller has chosen.
//
// D = op(A) op(B), or C + op(A) op(B); all matrices row by row, rows any number of elements apart
// that is a multiple of 16 bytes. Operands are bf16, sums fp32, the result bf16 or fp32. No
// algorithm uses atomics: the same algorithm gives the same bits every time.
//
// Operands may be of 8 bits as well, not both e5m2: D[i, j] = a_scale[i] b_scale[j] (A B^T)[i, j]
// with A [m, k] and B [n, k], k and n multiples of 16, and no C. Scales for rows of both ("outer
// vectors") are there from cuBLASLt 12.9 on, and with 13.1 on compute capability 9.0 only:
// require_float8() asks.
#pragma once

#include <dflash/core/scope.hpp>
#include <dflash/gpu/stream.hpp>
#include <dflash/kernels/row_tensor.hpp>

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace dflash::kernels {

/// What the choice of an algorithm depends on.
struct GemmShape {
    std::int64_t m = 0;  ///< rows of D
    std::int64_t n = 0;  ///< columns of D
    std::int64_t k = 0;
    bool a_transposed = false;  ///< A lies as [k, m], else as [m, k]
    bool b_transposed = false;  ///< B lies as [n, k], else as [k, n]
    Element result = Element::BFloat16;
    bool add = false;  ///< there is a C, in the type of D
    Element a = Element::BFloat16;
    Element b = Element::BFloat16;

    /// Of 8-bit operands: products are summed in the tensor cores' own precision, about 14 bits on
    /// Hopper, instead of going over into fp32 sums now and then. For short k only.
    bool fast_sums = false;

    bool operator==(const GemmShape&) const = default;

    /// "8192x24576x4096 nt bf16", "... fp32 add", "... nt fp32 of e5m2 e4m3", "... fast".
    std::string id() const;
};

struct GemmMatrices {
    RowTensor a;
    RowTensor b;
    RowTensor c{};  ///< may be D itself
    RowTensor d;
    const float* a_scale = nullptr;  ///< [m], of 8-bit operands; at a multiple of 16 bytes
    const float* b_scale = nullptr;  ///< [n]
};

/// One of cuBLASLt's algorithms with all of its parameters: opaque, and good for the version of the
/// library and the model of GPU that it was made for.
struct GemmAlgorithm {
    std::array<std::uint64_t, 8> code{};
    std::int64_t workspace_bytes = 0;

    bool operator==(const GemmAlgorithm&) const = default;
};

/// cuBLASLt on one device. Any thread whose current device it is; calls are asynchronous.
class Gemm : NonCopyable {
  public:
    /// On the current device of the calling thread. Throws Error{Device} where there is no
    /// cuBLASLt.
    Gemm();
    ~Gemm();

    /// Version and build of the library: what algorithms belong to.
    std::string version() const;

    /// Throws Error{Config}, naming `setting` and the reason, unless this library has a product of
    /// 8-bit rows of that shape on this GPU. The matrices are not touched.
    void require_float8(const GemmShape& shape,
                        const GemmMatrices& matrices,
                        std::int64_t workspace_bytes,
                        const std::string& setting) const;

    /// Algorithms for that product, the one that is thought the fastest first, at most `most`.
    /// Empty where cuBLASLt has none.
    std::vector<GemmAlgorithm> candidates(const GemmShape& shape,
                                          const GemmMatrices& matrices,
                                          int most,
                                          std::int64_t workspace_bytes) const;

    /// Whether the algorithm serves that product with that much memory.
    bool serves(const GemmAlgorithm& algorithm,
                const GemmShape& shape,
                const GemmMatrices& matrices,
                std::int64_t workspace_bytes) const;

    /// Queues the product. `workspace` has at least the algorithm's bytes, at a multiple of 256.
    void multiply(const GemmAlgorithm& algorithm,
                  const GemmShape& shape,
                  const GemmMatrices& matrices,
                  void* workspace,
                  gpu::StreamView stream) const;

  private:
    class Library;
    struct Problem;

    std::shared_ptr<const Library> library_;
    void* handle_ = nullptr;  // cublasLtHandle_t
};

}  // namespace dflash::kernels
