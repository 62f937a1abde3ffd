// SPDX-License-Identifier: Apache-2.0
// Products by the algorithms that were chosen for them, or by cuBLASLt's guesses.
#pragma once

#include <dflash/core/scope.hpp>
#include <dflash/gpu/stream.hpp>
#include <dflash/kernels/gemm.hpp>
#include <dflash/kernels/gemm_choices.hpp>
#include <dflash/kernels/gemm_contest.hpp>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace dflash::kernels {

/// On one GPU; used by its worker only. Without choices, and for classes whose choice it is, the
/// first algorithm that cuBLASLt names for a shape makes it: its guess, which is the same every
/// time. With choices that are not sealed yet a product of a class that has none is timed before it
/// is made, with its rows and with fewer of them: what is in its result is then added to many
/// times, and the call waits for the device. The chip's power depends on the numbers that it
/// multiplies, so they are to be like those of training.
class TunedGemm : NonCopyable {
  public:
    /// On the current device of the calling thread. `choices` may be null.
    explicit TunedGemm(std::shared_ptr<GemmChoices> choices);
    ~TunedGemm();

    /// Products of shapes with no choice that serves them, made by a guess instead: each shape
    /// counts once. Without choices nothing counts. Any thread.
    std::int64_t num_unforeseen() const { return num_unforeseen_.load(); }

    /// What timing took so far. After kMostTimingSeconds the guess is kept for what comes.
    double timing_s() const { return timing_s_; }

    /// Queues the product. `workspace` has kWorkspaceBytes.
    void multiply(const GemmShape& shape,
                  const GemmMatrices& matrices,
                  void* workspace,
                  gpu::StreamView stream);

    /// What NVIDIA advises for Hopper.
    static constexpr std::int64_t kWorkspaceBytes = std::int64_t{32} << 20;

    static constexpr double kMostTimingSeconds = 10;

  private:
    class Stopwatch;
    using Clock = std::chrono::steady_clock;

    GemmAlgorithm look_up(const GemmShape& shape, const GemmMatrices& matrices);
    GemmAlgorithm guess(const GemmShape& shape, const GemmMatrices& matrices) const;
    void tune_class(const GemmShape& shape,
                    const GemmMatrices& matrices,
                    void* workspace,
                    gpu::StreamView stream);
    std::vector<GemmChoice> time_all(const std::vector<GemmShape>& shapes,
                                     const GemmMatrices& matrices,
                                     void* workspace,
                                     gpu::StreamView stream);
    std::vector<GemmAlgorithm> competitors(const GemmShape& shape,
                                           const GemmMatrices& matrices) const;
    void load(const GemmAlgorithm& algorithm,
              const GemmShape& shape,
              const GemmMatrices& matrices,
              void* workspace,
              gpu::StreamView stream);

    Gemm gemm_;
    std::shared_ptr<GemmChoices> choices_;
    std::atomic<std::int64_t> num_unforeseen_ = 0;
    double timing_s_ = 0;
    std::optional<Clock::time_point> last_load_;  // when the last contest ended
    std::map<std::string, GemmAlgorithm> known_;  // by exact shape and strides
    std::set<std::string> loaded_;                // kernels, by kind of product and algorithm
    std::unique_ptr<Stopwatch> stopwatch_;
};

}  // namespace dflash::kernels
