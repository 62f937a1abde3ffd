// SPDX-License-Identifier: Apache-2.0
// Which of cuBLASLt's algorithms makes which product: timed once, the same on all GPUs of one model
// in this process, and remembered in a file, since another algorithm gives other bits.
#pragma once

#include <dflash/core/scope.hpp>
#include <dflash/io/json.hpp>
#include <dflash/kernels/gemm.hpp>

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace dflash::kernels {

struct GemmChoice {
    std::optional<GemmAlgorithm> algorithm;  ///< nothing: what cuBLASLt guesses for each shape
    double ms = 0;                           ///< what it took when it was timed; 0: it was not
    double guess_ms = 0;                     ///< what the guess took then

    bool operator==(const GemmChoice&) const = default;
};

/// By GemmShape::id() of the class.
using GemmChoiceMap = std::map<std::string, GemmChoice, std::less<>>;

/// Classes that have another algorithm in `now` than in `before`, or were not in it, in order.
std::vector<std::string> changed_choices(const GemmChoiceMap& before, const GemmChoiceMap& now);

/// {"256x512x1024 nt bf16": {"code": ...}}
io::Json to_json(const GemmChoiceMap& choices);

/// Throws an Error naming `where` for what to_json() does not write.
GemmChoiceMap choices_from_json(const io::Json& json, std::string_view where);

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

    const std::string& gpu() const { return gpu_; }

    const std::string& library() const { return library_; }

    /// "nvidia-h200": a file name without its ending.
    std::string name() const;

    /// What was chosen for the class of that shape, which counts as used from now on.
    std::optional<GemmChoice> find(const GemmShape& shape) const;

    /// Has `time` choose for those of the shapes whose class has no choice yet, one of each class;
    /// it returns as many choices as it was given shapes. One thread at a time chooses, the others
    /// wait for it.
    void choose(const std::vector<GemmShape>& shapes,
                const std::function<std::vector<GemmChoice>(const std::vector<GemmShape>&)>& time);

    /// Ends the start: from now on nothing is timed.
    void seal() { sealed_.store(true, std::memory_order_release); }

    bool sealed() const { return sealed_.load(std::memory_order_acquire); }

    /// Choices that were made by choose(), not read.
    std::int64_t num_timed() const;

    std::int64_t size() const;

    /// Of the classes that were asked for.
    GemmChoiceMap used() const;

    std::string to_text() const;

    /// Adds choices that were made before, for this GPU and this library. Where a class has one
    /// already, that one stays.
    void add(const GemmChoiceMap& choices);

    /// The same with what to_text() wrote. Returns false, and takes nothing, where it was made for
    /// another GPU or library. Throws an Error for what is no such text.
    bool read(std::string_view text, std::string_view where);

    /// Reads `folder`/name().json, where there is one that fits; an unreadable one is a warning.
    void load_from(const std::string& folder);

    /// Adds what was timed to that file. What fails is a warning: the next start times again.
    void save_to(const std::string& folder) const;

  private:
    std::string path_in(const std::string& folder) const;

    std::string gpu_;
    std::string library_;
    std::atomic<bool> sealed_ = false;
    std::mutex choosing_;       // held while timing
    mutable std::mutex mutex_;  // guards: what is below
    GemmChoiceMap choices_;
    mutable std::set<std::string, std::less<>> used_;
    std::set<std::string, std::less<>> timed_;
};

}  // namespace dflash::kernels
