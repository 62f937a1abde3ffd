// SPDX-License-Identifier: Apache-2.0
// Products by the algorithms that were chosen for them.
#pragma once

#include <dflash/core/scope.hpp>
#include <dflash/gpu/stream.hpp>
#include <dflash/kernels/gemm.hpp>
#include <dflash/kernels/gemm_choices.hpp>

#include <cstdint>
#include <map>
#include <memory>
#include <string>

namespace dflash::kernels {

/// On one GPU; used by its worker only. Until the choices are sealed a product of a class that has
/// no algorithm yet is timed before it is made, with its rows and with fewer of them: what is in
/// its result is then added to several times, and the call waits for the device. Later cuBLASLt's
/// own guess is taken, which is the same every time.
class TunedGemm : NonCopyable {
  public:
    /// On the current device of the calling thread.
    explicit TunedGemm(std::shared_ptr<GemmChoices> choices);
    ~TunedGemm();

    /// Products that were made by a guess.
    std::int64_t num_guessed() const { return num_guessed_; }

    /// Queues the product. `workspace` has kWorkspaceBytes.
    void multiply(const GemmShape& shape,
                  const GemmMatrices& matrices,
                  void* workspace,
                  gpu::StreamView stream);

    /// What NVIDIA advises for Hopper.
    static constexpr std::int64_t kWorkspaceBytes = std::int64_t{32} << 20;

  private:
    class Stopwatch;

    GemmAlgorithm look_up(const GemmShape& shape, const GemmMatrices& matrices);
    void tune_class(const GemmShape& shape,
                    const GemmMatrices& matrices,
                    void* workspace,
                    gpu::StreamView stream);
    GemmChoice time_all(const GemmShape& shape,
                        const GemmMatrices& matrices,
                        void* workspace,
                        gpu::StreamView stream);

    Gemm gemm_;
    std::shared_ptr<GemmChoices> choices_;
    std::int64_t num_guessed_ = 0;
    std::map<std::string, GemmAlgorithm> known_;  // by exact shape and strides
    std::unique_ptr<Stopwatch> stopwatch_;
};

}  // namespace dflash::kernels
