// SPDX-License-Identifier: Apache-2.0
#include <dflash/core/activity.hpp>
#include <dflash/core/check.hpp>
#include <dflash/core/error.hpp>
#include <dflash/gpu/check.hpp>
#include <dflash/kernels/tuned_gemm.hpp>

#include <algorithm>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <functional>
#include <utility>

namespace dflash::kernels {
namespace {

constexpr int kMostCandidates = 8;

// Power and clock settle within some tenths of a second; a pause of a few ms does not undo it.
constexpr double kLeadMs = 300;
constexpr double kShortLeadMs = 30;
constexpr std::chrono::milliseconds kShortPause{20};

std::int64_t& rows_of(GemmShape& shape) {
    return shape.a_transposed ? shape.k : shape.m;
}

/// The shape, and the same product with the most rows that each smaller class has: rows of the same
/// memory. The largest first.
std::vector<GemmShape> classes_below(const GemmShape& shape) {
    std::vector<GemmShape> shapes{shape};
    GemmShape smaller = gemm_class(shape);
    for (rows_of(smaller) /= 2; rows_of(smaller) >= kFewestGemmRows; rows_of(smaller) /= 2) {
        shapes.push_back(smaller);
    }
    return shapes;
}

/// Also of algorithms that a file holds.
bool fits(const GemmAlgorithm& algorithm) {
    return algorithm.workspace_bytes >= 0 &&
           algorithm.workspace_bytes <= TunedGemm::kWorkspaceBytes;
}

double work_of(const GemmShape& shape) {
    return static_cast<double>(shape.m) * static_cast<double>(shape.n) *
           static_cast<double>(shape.k);
}

}  // namespace

/// Times work on a stream.
class TunedGemm::Stopwatch : NonCopyable {
  public:
    Stopwatch() = default;

    ~Stopwatch() {
        for (const cudaEvent_t event : events_) {
            gpu::report(cudaEventDestroy(event));
        }
    }

    /// Queues `work` of 0, 1, ... one behind the other, waits for the last, and returns the ms of
    /// each.
    std::vector<double> ms(gpu::StreamView stream,
                           std::size_t count,
                           const std::function<void(std::size_t)>& work) {
        while (events_.size() < count + 1) {
            cudaEvent_t event = nullptr;
            gpu::check(cudaEventCreate(&event));
            events_.push_back(event);
        }
        gpu::check(cudaEventRecord(events_[0], stream.handle()));
        for (std::size_t i = 0; i < count; ++i) {
            work(i);
            gpu::check(cudaEventRecord(events_[i + 1], stream.handle()));
        }
        gpu::check(cudaEventSynchronize(events_[count]));
        std::vector<double> times;
        for (std::size_t i = 0; i < count; ++i) {
            float result = 0;
            gpu::check(cudaEventElapsedTime(&result, events_[i], events_[i + 1]));
            times.push_back(double{result});
        }
        return times;
    }

  private:
    std::vector<cudaEvent_t> events_;
};

TunedGemm::TunedGemm(std::shared_ptr<GemmChoices> choices)
    : choices_(std::move(choices)), stopwatch_(std::make_unique<Stopwatch>()) {}

TunedGemm::~TunedGemm() = default;

void TunedGemm::multiply(const GemmShape& shape,
                         const GemmMatrices& matrices,
                         void* workspace,
                         gpu::StreamView stream) {
    if (shape.m == 0 || shape.n == 0) {
        return;
    }
    if (choices_ != nullptr && !choices_->sealed()) {
        // Also where this class has a choice: smaller ones of the product may have none.
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
    const std::optional<GemmChoice> chosen =
        choices_ == nullptr ? std::optional(GemmChoice{}) : choices_->find(shape);
    if (!chosen || (chosen->algorithm &&
                    !(fits(*chosen->algorithm) &&
                      gemm_.serves(*chosen->algorithm, shape, matrices, kWorkspaceBytes)))) {
        num_unforeseen_ += 1;
    } else if (chosen->algorithm) {
        return known_.emplace(key, *chosen->algorithm).first->second;
    }
    return known_.emplace(key, guess(shape, matrices)).first->second;
}

GemmAlgorithm TunedGemm::guess(const GemmShape& shape, const GemmMatrices& matrices) const {
    const std::vector<GemmAlgorithm> guesses =
        gemm_.candidates(shape, matrices, /*most=*/1, kWorkspaceBytes);
    if (guesses.empty()) {
        throw Error(
            ErrorKind::Device,
            {.what = fmt::format("cuBLASLt has no algorithm for the product {}", shape.id()),
             .where = gemm_.version(),
             .cause = {},
             .hint = "train.products = \"torch\" leaves products to LibTorch"});
    }
    return guesses.front();
}

void TunedGemm::tune_class(const GemmShape& shape,
                           const GemmMatrices& matrices,
                           void* workspace,
                           gpu::StreamView stream) {
    choices_->choose(classes_below(shape), [&](const std::vector<GemmShape>& open) {
        note_progress();
        const Clock::time_point begin = Clock::now();
        std::vector<GemmChoice> choices(open.size());
        if (timing_s_ < kMostTimingSeconds) {
            choices = time_all(open, matrices, workspace, stream);
            last_load_ = Clock::now();
        }
        timing_s_ += std::chrono::duration<double>(Clock::now() - begin).count();
        return choices;
    });
}

/// The guess first, as look_up() would take it.
std::vector<GemmAlgorithm> TunedGemm::competitors(const GemmShape& shape,
                                                  const GemmMatrices& matrices) const {
    std::vector<GemmAlgorithm> result{guess(shape, matrices)};
    for (const GemmAlgorithm& algorithm :
         gemm_.candidates(shape, matrices, kMostCandidates, kWorkspaceBytes)) {
        if (algorithm != result.front()) {
            result.push_back(algorithm);
        }
    }
    return result;
}

/// One call before anything is timed: the first of a kernel brings it to the GPU.
void TunedGemm::load(const GemmAlgorithm& algorithm,
                     const GemmShape& shape,
                     const GemmMatrices& matrices,
                     void* workspace,
                     gpu::StreamView stream) {
    GemmShape kind = shape;
    kind.m = kind.n = kind.k = 0;
    if (loaded_.insert(fmt::format("{} {:x}", kind.id(), fmt::join(algorithm.code, " "))).second) {
        gemm_.multiply(algorithm, shape, matrices, workspace, stream);
    }
}

std::vector<GemmChoice> TunedGemm::time_all(const std::vector<GemmShape>& shapes,
                                            const GemmMatrices& matrices,
                                            void* workspace,
                                            gpu::StreamView stream) {
    std::vector<std::vector<GemmAlgorithm>> algorithms;
    for (const GemmShape& shape : shapes) {
        algorithms.push_back(competitors(shape, matrices));
        for (const GemmAlgorithm& algorithm : algorithms.back()) {
            load(algorithm, shape, matrices, workspace, stream);
        }
    }
    const auto call = [&](std::size_t contest, std::size_t algorithm) {
        gemm_.multiply(
            algorithms[contest][algorithm], shapes[contest], matrices, workspace, stream);
    };
    const double first_ms = stopwatch_->ms(stream, 1, [&](std::size_t) { call(0, 0); }).front();
    std::vector<GemmContest> contests;
    for (std::size_t i = 0; i < shapes.size(); ++i) {
        contests.push_back(
            {algorithms[i].size(), first_ms * work_of(shapes[i]) / work_of(shapes[0])});
    }
    const bool warm = last_load_ && Clock::now() - *last_load_ < kShortPause;
    const std::vector<GemmVerdict> verdicts = hold_contests(
        contests, warm ? kShortLeadMs : kLeadMs, [&](const std::vector<GemmVisit>& visits) {
            std::vector<double> ms = stopwatch_->ms(stream, visits.size(), [&](std::size_t i) {
                for (int n = 0; n < visits[i].calls; ++n) {
                    call(visits[i].contest, visits[i].algorithm);
                }
            });
            for (std::size_t i = 0; i < visits.size(); ++i) {
                ms[i] /= visits[i].calls;
            }
            return ms;
        });
    std::vector<GemmChoice> choices;
    for (std::size_t i = 0; i < shapes.size(); ++i) {
        const GemmVerdict& verdict = verdicts[i];
        choices.push_back({.algorithm = verdict.algorithm == 0
                                            ? std::nullopt
                                            : std::optional(algorithms[i][verdict.algorithm]),
                           .ms = verdict.ms,
                           .guess_ms = verdict.guess_ms});
    }
    return choices;
}

}  // namespace dflash::kernels
