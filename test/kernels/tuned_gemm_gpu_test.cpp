// SPDX-License-Identifier: Apache-2.0
#include "rows/device_rows.hpp"

#include <dflash/gpu/check.hpp>
#include <dflash/kernels/tuned_gemm.hpp>

#include <cuda_runtime_api.h>
#include <doctest/doctest.h>
#include <memory>
#include <vector>

namespace dflash::kernels {
namespace {

using test::DeviceRows;
using test::random_rows;
using test::relative_error;
using test::row_kernels;

using Values = std::vector<double>;

constexpr std::int64_t kColumns = 192;
constexpr std::int64_t kSum = 128;

class Workspace : NonCopyable {
  public:
    Workspace() {
        row_kernels();  // makes the device current
        gpu::check(cudaMalloc(&data_, static_cast<std::size_t>(TunedGemm::kWorkspaceBytes)));
    }

    ~Workspace() { gpu::report(cudaFree(data_)); }

    void* data() const { return data_; }

  private:
    void* data_ = nullptr;
};

/// D = A B^T of random matrices.
struct Product {
    GemmShape shape;
    Values a;
    Values b = random_rows(2, kColumns* kSum);
    DeviceRows a_MK{shape.m, kSum, Element::BFloat16, 0, a};
    DeviceRows b_NK{kColumns, kSum, Element::BFloat16, 0, b};
    DeviceRows d_MN{shape.m, kColumns, Element::Float32, 0};

    explicit Product(std::int64_t rows)
        : shape{.m = rows,
                .n = kColumns,
                .k = kSum,
                .b_transposed = true,
                .result = Element::Float32},
          a(random_rows(1, rows * kSum)) {}

    Values made_by(TunedGemm& gemm, const Workspace& workspace) {
        d_MN.set(Values(static_cast<std::size_t>(shape.m * shape.n), -7));
        gemm.multiply(shape,
                      {.a = a_MK.tensor(), .b = b_NK.tensor(), .d = d_MN.tensor()},
                      workspace.data(),
                      row_kernels().stream());
        return d_MN.fetch();
    }

    Values exact() const {
        Values d;
        for (std::int64_t m = 0; m < shape.m; ++m) {
            for (std::int64_t n = 0; n < shape.n; ++n) {
                double sum = 0;
                for (std::int64_t k = 0; k < kSum; ++k) {
                    sum += a[static_cast<std::size_t>(m * kSum + k)] *
                           b[static_cast<std::size_t>(n * kSum + k)];
                }
                d.push_back(sum);
            }
        }
        return d;
    }
};

}  // namespace

TEST_SUITE("kernels.tuned_gemm") {
    TEST_CASE("timed products are right, and have the same bits by choices that were read") {
        const Workspace workspace;
        auto choices = std::make_shared<GemmChoices>("a GPU", "a library");
        TunedGemm timed(choices);
        Product product(700);
        const Values first = product.made_by(timed, workspace);
        // fp32 sums of 128 exact products.
        CHECK(relative_error(first, product.exact()) < 1e-5);
        CHECK(timed.timing_s() > 0);
        CHECK(timed.timing_s() < TunedGemm::kMostTimingSeconds);
        CHECK(choices->num_timed() == 3);  // up to 1024, 512 and 256 rows
        for (const auto& [key, choice] : choices->used()) {
            CAPTURE(key);
            CHECK(choice.ms > 0);
            CHECK(choice.ms <= choice.guess_ms);
        }

        auto read = std::make_shared<GemmChoices>("a GPU", "a library");
        REQUIRE(read->read(choices->to_text(), "here"));
        TunedGemm again(read);
        CHECK(product.made_by(again, workspace) == first);
        CHECK(read->num_timed() == 0);
        CHECK(read->used().size() == 3);
        CHECK(again.timing_s() == 0);
    }

    TEST_CASE("after the seal nothing is timed, and what has no choice is counted once a shape") {
        const Workspace workspace;
        auto choices = std::make_shared<GemmChoices>("a GPU", "a library");
        TunedGemm gemm(choices);
        Product(600).made_by(gemm, workspace);
        choices->seal();
        for (const std::int64_t rows : {1, 128, 300, 600, 1024}) {
            CAPTURE(rows);
            Product product(rows);
            CHECK(relative_error(product.made_by(gemm, workspace), product.exact()) < 1e-5);
        }
        CHECK(gemm.num_unforeseen() == 0);
        for (int i = 0; i < 2; ++i) {
            Product product(1500);
            CHECK(relative_error(product.made_by(gemm, workspace), product.exact()) < 1e-5);
        }
        CHECK(gemm.num_unforeseen() == 1);
        CHECK(choices->num_timed() == 3);
    }

    TEST_CASE("guesses need no choices and no time, and are the same every time") {
        const Workspace workspace;
        TunedGemm gemm(nullptr);
        TunedGemm other(nullptr);
        for (const std::int64_t rows : {1, 128, 129, 2000}) {
            CAPTURE(rows);
            Product product(rows);
            const Values first = product.made_by(gemm, workspace);
            CHECK(relative_error(first, product.exact()) < 1e-5);
            CHECK(product.made_by(other, workspace) == first);
        }
        CHECK(gemm.num_unforeseen() == 0);
        CHECK(gemm.timing_s() == 0);
    }

    TEST_CASE("few rows are one class, whatever their number") {
        const Workspace workspace;
        auto choices = std::make_shared<GemmChoices>("a GPU", "a library");
        TunedGemm gemm(choices);
        for (const std::int64_t rows : {128, 1, 256}) {
            Product(rows).made_by(gemm, workspace);
        }
        CHECK(choices->num_timed() == 1);
    }
}

}  // namespace dflash::kernels
