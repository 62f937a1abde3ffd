// SPDX-License-Identifier: Apache-2.0
// cuBLASLt knows matrices column by column. A matrix row by row is its transpose there, so it is
// asked for D^T = op(B)^T op(A)^T: its first operand is our B.
#include "row_launch.hpp"
#include "shared_library.hpp"

#include <dflash/core/check.hpp>
#include <dflash/core/error.hpp>
#include <dflash/gpu/check.hpp>
#include <dflash/kernels/gemm.hpp>

#include <algorithm>
#include <cstring>
#include <cublasLt.h>
#include <fmt/format.h>
#include <utility>

namespace dflash::kernels {
namespace {

// The first version with a scale for each row (release notes of CUDA 12.9).
constexpr std::size_t kFirstWithRowScales = 120900;

constexpr std::int64_t kFloat8Multiple = 16;  // elements of 16 bytes

cudaDataType_t type_of(Element element) {
    switch (element) {
        case Element::BFloat16:
            return CUDA_R_16BF;
        case Element::Float32:
            return CUDA_R_32F;
        case Element::Float8E4M3:
            return CUDA_R_8F_E4M3;
        case Element::Float8E5M2:
            return CUDA_R_8F_E5M2;
    }
    return CUDA_R_16BF;
}

static_assert(sizeof(cublasLtMatmulAlgo_t) == sizeof(GemmAlgorithm::code));

cublasLtMatmulAlgo_t algorithm_of(const GemmAlgorithm& algorithm) {
    cublasLtMatmulAlgo_t result;
    std::memcpy(&result, algorithm.code.data(), sizeof(result));
    return result;
}

}  // namespace

/// The functions that are used. One for the process.
class Gemm::Library {
  public:
    static std::shared_ptr<const Library> get() {
        static const std::shared_ptr<const Library> library = std::make_shared<Library>();
        return library;
    }

    Library() : file_({"libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so"}) {
        if (!file_.is_open()) {
            throw Error(ErrorKind::Device,
                        {.what = "cuBLASLt cannot be loaded",
                         .where = "libcublasLt.so",
                         .cause = file_.failure(),
                         .hint = "Run tools/setup, which installs LibTorch with it"});
        }
        file_.load("cublasLtCreate", create);
        file_.load("cublasLtDestroy", destroy);
        file_.load("cublasLtGetVersion", get_version);
        file_.load("cublasLtMatmul", matmul);
        file_.load("cublasLtMatmulAlgoGetHeuristic", heuristic);
        file_.load("cublasLtMatmulAlgoCheck", check_algorithm);
        file_.load("cublasLtMatmulDescInit_internal", desc_init);
        file_.load("cublasLtMatmulDescSetAttribute", desc_set);
        file_.load("cublasLtMatrixLayoutInit_internal", layout_init);
        file_.load("cublasLtMatmulPreferenceInit_internal", preference_init);
        file_.load("cublasLtMatmulPreferenceSetAttribute", preference_set);
        file_.load("cublasLtGetStatusString", status_string);
    }

    std::string version() const { return fmt::format("{} {}", get_version(), file_.build()); }

    bool has_row_scales() const { return get_version() >= kFirstWithRowScales; }

    void check(cublasStatus_t status, const char* call) const {
        if (status != CUBLAS_STATUS_SUCCESS) {
            throw Error(ErrorKind::Device,
                        {.what = fmt::format("{} of cuBLASLt failed", call),
                         .where = file_.path(),
                         .cause = status_string(status),
                         .hint = {}});
        }
    }

    decltype(cublasLtCreate)* create = nullptr;
    decltype(cublasLtDestroy)* destroy = nullptr;
    decltype(cublasLtGetVersion)* get_version = nullptr;
    decltype(cublasLtMatmul)* matmul = nullptr;
    decltype(cublasLtMatmulAlgoGetHeuristic)* heuristic = nullptr;
    decltype(cublasLtMatmulAlgoCheck)* check_algorithm = nullptr;
    decltype(cublasLtMatmulDescInit_internal)* desc_init = nullptr;
    decltype(cublasLtMatmulDescSetAttribute)* desc_set = nullptr;
    decltype(cublasLtMatrixLayoutInit_internal)* layout_init = nullptr;
    decltype(cublasLtMatmulPreferenceInit_internal)* preference_init = nullptr;
    decltype(cublasLtMatmulPreferenceSetAttribute)* preference_set = nullptr;
    decltype(cublasLtGetStatusString)* status_string = nullptr;

  private:
    SharedLibrary file_;
};

/// A product in cuBLASLt's words. The descriptors live here: nothing is allocated.
struct Gemm::Problem {
    cublasLtMatmulDescOpaque_t operation{};
    cublasLtMatrixLayoutOpaque_t first{};
    cublasLtMatrixLayoutOpaque_t second{};
    cublasLtMatrixLayoutOpaque_t added{};
    cublasLtMatrixLayoutOpaque_t result{};

    Problem(const Library& library, const GemmShape& s, const GemmMatrices& matrices) {
        library.check(
            library.desc_init(&operation, sizeof(operation), CUBLAS_COMPUTE_32F, CUDA_R_32F),
            "cublasLtMatmulDescInit");
        transpose(library, CUBLASLT_MATMUL_DESC_TRANSA, s.b_transposed);
        transpose(library, CUBLASLT_MATMUL_DESC_TRANSB, s.a_transposed);
        const auto layout = [&](cublasLtMatrixLayoutOpaque_t& of,
                                const RowTensor& matrix,
                                std::int64_t rows,
                                std::int64_t columns) {
            library.check(library.layout_init(&of,
                                              sizeof(of),
                                              type_of(matrix.element),
                                              static_cast<std::uint64_t>(columns),
                                              static_cast<std::uint64_t>(rows),
                                              matrix.row_stride),
                          "cublasLtMatrixLayoutInit");
        };
        layout(first, matrices.b, s.b_transposed ? s.n : s.k, s.b_transposed ? s.k : s.n);
        layout(second, matrices.a, s.a_transposed ? s.k : s.m, s.a_transposed ? s.m : s.k);
        layout(result, matrices.d, s.m, s.n);
        layout(added, s.add ? matrices.c : matrices.d, s.m, s.n);
        if (is_float8(s.a)) {
            constexpr std::int32_t kRows = CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F;
            set(library, CUBLASLT_MATMUL_DESC_A_SCALE_MODE, kRows);
            set(library, CUBLASLT_MATMUL_DESC_B_SCALE_MODE, kRows);
            set(library, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, matrices.b_scale);
            set(library, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, matrices.a_scale);
            const std::int8_t fast = s.fast_sums ? 1 : 0;
            set(library, CUBLASLT_MATMUL_DESC_FAST_ACCUM, fast);
        }
    }

  private:
    void transpose(const Library& library, cublasLtMatmulDescAttributes_t which, bool yes) {
        const cublasOperation_t value = yes ? CUBLAS_OP_T : CUBLAS_OP_N;
        set(library, which, value);
    }

    template <typename Value>
    void set(const Library& library, cublasLtMatmulDescAttributes_t which, const Value& value) {
        library.check(library.desc_set(&operation, which, &value, sizeof(value)),
                      "cublasLtMatmulDescSetAttribute");
    }
};

std::string GemmShape::id() const {
    return fmt::format("{}x{}x{} {}{} {}{}{}{}",
                       m,
                       n,
                       k,
                       a_transposed ? 't' : 'n',
                       b_transposed ? 't' : 'n',
                       name_of(result),
                       add ? " add" : "",
                       is_float8(a) ? fmt::format(" of {} {}", name_of(a), name_of(b)) : "",
                       fast_sums ? " fast" : "");
}

Gemm::Gemm() : library_(Library::get()) {
    cublasLtHandle_t handle = nullptr;
    library_->check(library_->create(&handle), "cublasLtCreate");
    handle_ = handle;
}

Gemm::~Gemm() {
    static_cast<void>(library_->destroy(static_cast<cublasLtHandle_t>(handle_)));
}

std::string Gemm::version() const {
    return library_->version();
}

void Gemm::require_float8(const GemmShape& shape,
                          const GemmMatrices& matrices,
                          std::int64_t workspace_bytes,
                          const std::string& setting) const {
    int ordinal = 0;
    int major = 0;
    int minor = 0;
    gpu::check(cudaGetDevice(&ordinal));
    gpu::check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, ordinal));
    gpu::check(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, ordinal));
    const auto refuse = [&](std::string what, std::string hint) {
        throw Error(ErrorKind::Config,
                    {.what = fmt::format("{}: {}", setting, what),
                     .where = fmt::format("cuda:{} (compute capability {}.{}), cuBLASLt {}",
                                          ordinal,
                                          major,
                                          minor,
                                          version()),
                     .cause = {},
                     .hint = std::move(hint)});
    };
    if (shape.n % kFloat8Multiple != 0 || shape.k % kFloat8Multiple != 0) {
        refuse(fmt::format("a product with a matrix of {} x {} in fp8, expected multiples of {}",
                           shape.n,
                           shape.k,
                           kFloat8Multiple),
               "Use draft.head_precision = \"bf16\" for this model");
    }
    if (!library_->has_row_scales()) {
        refuse(
            "this cuBLASLt has no fp8 products with a scale for each row, expected 12.9 or newer",
            "Run tools/setup, which installs LibTorch with a newer one");
    }
    if (candidates(shape, matrices, /*most=*/1, workspace_bytes).empty()) {
        refuse(fmt::format("cuBLASLt has no fp8 product with a scale for each row on this GPU "
                           "(asked for {})",
                           shape.id()),
               "GPUs of compute capability 9.0 have them (H100, H200); use "
               "draft.head_precision = \"bf16\" on others");
    }
}

std::vector<GemmAlgorithm> Gemm::candidates(const GemmShape& shape,
                                            const GemmMatrices& matrices,
                                            int most,
                                            std::int64_t workspace_bytes) const {
    Problem problem(*library_, shape, matrices);
    cublasLtMatmulPreferenceOpaque_t preference{};
    const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t which, const auto& value) {
        library_->check(library_->preference_set(&preference, which, &value, sizeof(value)),
                        "cublasLtMatmulPreferenceSetAttribute");
    };
    library_->check(library_->preference_init(&preference, sizeof(preference)),
                    "cublasLtMatmulPreferenceInit");
    prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<std::uint64_t>(workspace_bytes));
    // Sums over parts of k in a step of their own, in fp32: the same order every time, and no
    // rounding of the parts.
    prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
           static_cast<std::uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
    constexpr std::uint32_t kAlignment = 16;
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, kAlignment);
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, kAlignment);
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, kAlignment);
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, kAlignment);
    std::vector<cublasLtMatmulHeuristicResult_t> results(static_cast<std::size_t>(most));
    int count = 0;
    const cublasStatus_t status = library_->heuristic(static_cast<cublasLtHandle_t>(handle_),
                                                      &problem.operation,
                                                      &problem.first,
                                                      &problem.second,
                                                      &problem.added,
                                                      &problem.result,
                                                      &preference,
                                                      most,
                                                      results.data(),
                                                      &count);
    if (status == CUBLAS_STATUS_NOT_SUPPORTED) {
        return {};
    }
    library_->check(status, "cublasLtMatmulAlgoGetHeuristic");
    std::vector<GemmAlgorithm> algorithms;
    for (int i = 0; i < count; ++i) {
        const cublasLtMatmulHeuristicResult_t& found = results[static_cast<std::size_t>(i)];
        if (found.state == CUBLAS_STATUS_SUCCESS) {
            GemmAlgorithm& algorithm = algorithms.emplace_back();
            std::memcpy(algorithm.code.data(), &found.algo, sizeof(found.algo));
            algorithm.workspace_bytes = static_cast<std::int64_t>(found.workspaceSize);
        }
    }
    return algorithms;
}

bool Gemm::serves(const GemmAlgorithm& algorithm,
                  const GemmShape& shape,
                  const GemmMatrices& matrices,
                  std::int64_t workspace_bytes) const {
    Problem problem(*library_, shape, matrices);
    const cublasLtMatmulAlgo_t code = algorithm_of(algorithm);
    cublasLtMatmulHeuristicResult_t result{};
    const cublasStatus_t status = library_->check_algorithm(static_cast<cublasLtHandle_t>(handle_),
                                                            &problem.operation,
                                                            &problem.first,
                                                            &problem.second,
                                                            &problem.added,
                                                            &problem.result,
                                                            &code,
                                                            &result);
    return status == CUBLAS_STATUS_SUCCESS &&
           static_cast<std::int64_t>(result.workspaceSize) <= workspace_bytes;
}

void Gemm::multiply(const GemmAlgorithm& algorithm,
                    const GemmShape& shape,
                    const GemmMatrices& matrices,
                    void* workspace,
                    gpu::StreamView stream) const {
    DFLASH_CHECK(stream.is_cuda(), "a product is queued without a CUDA stream");
    if (shape.m == 0 || shape.n == 0) {
        return;
    }
    const std::int64_t a_columns = shape.a_transposed ? shape.m : shape.k;
    const std::int64_t b_columns = shape.b_transposed ? shape.k : shape.n;
    check_rows(matrices.a, shape.a, a_columns, "first operand of a product");
    check_rows(matrices.b, shape.b, b_columns, "second operand of a product");
    DFLASH_CHECK(is_float8(shape.a) == is_float8(shape.b), "a product {}", shape.id());
    if (is_float8(shape.a)) {
        DFLASH_CHECK(!shape.a_transposed && shape.b_transposed && !shape.add,
                     "an fp8 product {}",
                     shape.id());
        check_aligned(matrices.a_scale, "scales of a product's first operand");
        check_aligned(matrices.b_scale, "scales of a product's second operand");
    }
    check_rows(matrices.d, shape.result, shape.n, "result of a product");
    if (shape.add) {
        check_rows(matrices.c, shape.result, shape.n, "matrix that a product is added to");
    }
    Problem problem(*library_, shape, matrices);
    const cublasLtMatmulAlgo_t code = algorithm_of(algorithm);
    const float one = 1;
    const float of_added = shape.add ? 1 : 0;
    library_->check(library_->matmul(static_cast<cublasLtHandle_t>(handle_),
                                     &problem.operation,
                                     &one,
                                     matrices.b.data,
                                     &problem.first,
                                     matrices.a.data,
                                     &problem.second,
                                     &of_added,
                                     shape.add ? matrices.c.data : matrices.d.data,
                                     &problem.added,
                                     matrices.d.data,
                                     &problem.result,
                                     &code,
                                     workspace,
                                     static_cast<std::size_t>(algorithm.workspace_bytes),
                                     stream.handle()),
                    "cublasLtMatmul");
}

}  // namespace dflash::kernels
