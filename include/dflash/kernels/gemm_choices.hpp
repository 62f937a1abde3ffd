// SPDX-License-Identifier: Apache-2.0
// Which of cuBLASLt's algorithms makes which product: timed once, the same on all GPUs of one model
// in this process, and remembered in a file, since another algorithm gives other bits.
#pragma once

#include <dflash/core/scope.hpp>
#include <dflash/kernels/gemm.hpp>

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

namespace dflash::kernels {

struct GemmChoice {
    GemmAlgorithm algorithm;
    double ms = 0;  ///< what it took when it was timed

    bool operator==(const GemmChoice&) const = default;
};

/// Products of fewer rows of activations share their algorithm: they are short anyway.
inline constexpr std::int64_t kFewestGemmRows = 256;

/// The shape that stands for all with as many rows of activations, up to the next power of two:
/// rows differ from step to step, and the algorithm must not be timed in one. Rows are m of
/// products with a weight, k of a weight's gradient.
GemmShape gemm_class(const GemmShape& shape);

/// The choices for one model of GPU and one build of cuBLASLt. All members may be called from any
/// thread.
class GemmChoices : NonCopyable {
  public:
    GemmChoices(std::string gpu, std::string library);

    /// "nvidia-h200": a file name without its ending.
    std::string name() const;

    /// What was chosen for the class of that shape.
    std::optional<GemmAlgorithm> find(const GemmShape& shape) const;

    /// The same, chosen now by `time` if there is none. One thread at a time chooses, the others
    /// wait for it.
    GemmAlgorithm choose(const GemmShape& shape, const std::function<GemmChoice()>& time);

    /// Ends the start: from now on nothing is timed.
    void seal() { sealed_.store(true, std::memory_order_release); }

    bool sealed() const { return sealed_.load(std::memory_order_acquire); }

    /// Choices that were made by choose(), not read.
    std::int64_t num_timed() const;

    std::int64_t size() const;

    std::string to_text() const;

    /// Takes over what `text` holds, in place of what there is. Returns false, and takes nothing,
    /// where it was made for another GPU or library. Throws Error{Data} for what is no such text.
    bool read(std::string_view text, std::string_view where);

    /// Reads `folder`/name().json, where there is one that fits; an unreadable one is a warning.
    void load_from(const std::string& folder);

    /// Writes it, if anything was timed. What fails is a warning: the next start times again.
    void save_to(const std::string& folder) const;

  private:
    std::string gpu_;
    std::string library_;
    std::atomic<bool> sealed_ = false;
    std::mutex choosing_;                                     // held while timing
    mutable std::mutex mutex_;                                // guards: what is below
    std::map<std::string, GemmChoice, std::less<>> choices_;  // by id of the class
    std::int64_t num_timed_ = 0;
};

}  // namespace dflash::kernels
