// SPDX-License-Identifier: Apache-2.0
#include <dflash/core/activity.hpp>
#include <dflash/core/check.hpp>
#include <dflash/core/error.hpp>
#include <dflash/gpu/check.hpp>
#include <dflash/kernels/tuned_gemm.hpp>

#include <algorithm>
#include <fmt/format.h>
#include <utility>
#include <vector>

namespace dflash::kernels {
namespace {

constexpr int kMostCandidates = 12;
constexpr int kRuns = 3;

std::int64_t& rows_of(GemmShape& shape) {
    return shape.a_transposed ? shape.k : shape.m;
}

/// The same product with the most rows that the next smaller class has.
GemmShape next_smaller(const GemmShape& shape) {
    GemmShape result = gemm_class(shape);
    rows_of(result) /= 2;
    return result;
}

}  // namespace

/// Times work on a stream, and waits for it.
class TunedGemm::Stopwatch : NonCopyable {
  public:
    Stopwatch() {
        gpu::check(cudaEventCreate(&begin_));
        gpu::check(cudaEventCreate(&end_));
    }

    ~Stopwatch() {
        gpu::report(cudaEventDestroy(begin_));
        gpu::report(cudaEventDestroy(end_));
    }

    double ms(gpu::StreamView stream, const std::function<void()>& work) const {
        gpu::check(cudaEventRecord(begin_, stream.handle()));
        work();
        gpu::check(cudaEventRecord(end_, stream.handle()));
        gpu::check(cudaEventSynchronize(end_));
        float result = 0;
        gpu::check(cudaEventElapsedTime(&result, begin_, end_));
        return double{result};
    }

  private:
    cudaEvent_t begin_ = nullptr;
    cudaEvent_t end_ = nullptr;
};

TunedGemm::TunedGemm(std::shared_ptr<GemmChoices> choices)
    : choices_(std::move(choices)), stopwatch_(std::make_unique<Stopwatch>()) {}

TunedGemm::~TunedGemm() = default;

void TunedGemm::multiply(const GemmShape& shape,
                         const GemmMatrices& matrices,
                         void* workspace,
                         gpu::StreamView stream) {
    if (!choices_->sealed() && !choices_->find(shape)) {
        tune_class(shape, matrices, workspace, stream);
    }
    gemm_.multiply(look_up(shape, matrices), shape, matrices, workspace, stream);
}

GemmAlgorithm TunedGemm::look_up(const GemmShape& shape, const GemmMatrices& matrices) {
    const std::string key = fmt::format("{} {} {} {}",
                                        shape.id(),
                                        matrices.a.row_stride,
                                        matrices.b.row_stride,
                                        matrices.d.row_stride);
    const auto known = known_.find(key);
    if (known != known_.end()) {
        return known->second;
    }
    const std::optional<GemmAlgorithm> chosen = choices_->find(shape);
    if (chosen && gemm_.serves(*chosen, shape, matrices, kWorkspaceBytes)) {
        known_.emplace(key, *chosen);
        return *chosen;
    }
    const std::vector<GemmAlgorithm> guesses =
        gemm_.candidates(shape, matrices, /*most=*/1, kWorkspaceBytes);
    if (guesses.empty()) {
        throw Error(
            ErrorKind::Device,
            {.what = fmt::format("cuBLASLt has no algorithm for the product {}", shape.id()),
             .where = gemm_.version(),
             .cause = {},
             .hint = {}});
    }
    num_guessed_ += 1;
    known_.emplace(key, guesses.front());
    return guesses.front();
}

void TunedGemm::tune_class(const GemmShape& shape,
                           const GemmMatrices& matrices,
                           void* workspace,
                           gpu::StreamView stream) {
    // Fewer rows of the same memory.
    for (GemmShape s = shape; rows_of(s) >= kFewestGemmRows || s == shape; s = next_smaller(s)) {
        choices_->choose(s, [&] {
            note_progress();
            return time_all(s, matrices, workspace, stream);
        });
    }
}

GemmChoice TunedGemm::time_all(const GemmShape& shape,
                               const GemmMatrices& matrices,
                               void* workspace,
                               gpu::StreamView stream) {
    GemmChoice best;
    bool found = false;
    for (const GemmAlgorithm& algorithm :
         gemm_.candidates(shape, matrices, kMostCandidates, kWorkspaceBytes)) {
        const auto once = [&] { gemm_.multiply(algorithm, shape, matrices, workspace, stream); };
        once();
        std::vector<double> times;
        for (int run = 0; run < kRuns; ++run) {
            times.push_back(stopwatch_->ms(stream, once));
        }
        std::nth_element(times.begin(), times.begin() + kRuns / 2, times.end());
        if (!found || times[kRuns / 2] < best.ms) {
            best = {algorithm, times[kRuns / 2]};
            found = true;
        }
    }
    if (!found) {
        throw Error(
            ErrorKind::Device,
            {.what = fmt::format("cuBLASLt has no algorithm for the product {}", shape.id()),
             .where = gemm_.version(),
             .cause = {},
             .hint = {}});
    }
    return best;
}

}  // namespace dflash::kernels
