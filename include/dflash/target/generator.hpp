// SPDX-License-Identifier: Apache-2.0
// Answers prompts with a target, many at once: a sequence that has ended gives its slot to the next
// prompt at once (continuous batching).
//
// S sequences of a step, V vocabulary.
#pragma once

#include <dflash/core/scope.hpp>
#include <dflash/core/types.hpp>
#include <dflash/target/sampling.hpp>
#include <dflash/target/target_model.hpp>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

namespace dflash::target {

struct GenerationRequest {
    std::int64_t id = 0;          ///< the caller's, comes back with the result
    std::vector<TokenId> prompt;  ///< at least one token
    std::int64_t max_new_tokens = 1;
    Sampling sampling;
    /// The random numbers of the answer are those of (seed, sequence): it does not depend on what
    /// is answered beside it, but for the rounding of products of other sizes.
    std::uint64_t seed = 0;
    std::uint64_t sequence = 0;
};

struct Generation {
    std::int64_t id = 0;
    std::vector<TokenId> tokens;  ///< the stop token, if there is one, is the last
    bool stopped = false;         ///< by a stop token; else cut at max_new_tokens
};

struct GeneratorOptions {
    std::int64_t slots = 1;
    std::int64_t capacity = 1;           ///< tokens of prompt and answer
    std::int64_t prefill_tokens = 4096;  ///< most prompt tokens that go through at a time
    std::vector<TokenId> stop_tokens;
    /// Whether decode steps are replayed from CUDA graphs, one for each of some batch sizes;
    /// ignored where they cannot be (CPU devices, fp32).
    bool graphs = true;
};

/// Belongs to the worker of its target; all members but tokens_chosen() are its. On a GPU the host
/// reads tokens one step behind, so that the device never waits for it.
class Generator : NonCopyable {
  public:
    /// The next prompt, or nothing if there is none now: asked again after every step while a slot
    /// is free, so that an answer can lead to another prompt.
    using Next = std::function<std::optional<GenerationRequest>()>;
    using Take = std::function<void(Generation)>;

    /// Allocates the cache and captures the graphs. `model` must be loaded with its head, and must
    /// outlive the generator.
    Generator(TargetModel& model, GeneratorOptions options);
    ~Generator();

    /// Answers prompts until all are answered and there is none, or `stop` (may be null) says so:
    /// what is not finished then is dropped. Answers come in the order in which they end. Internal
    /// error for a prompt that does not fit the capacity with its answer; Error{Numeric} for logits
    /// that are not finite; passes on what the functions throw. After an exception the generator
    /// must not be used.
    void run(const Next& next, const Take& take, const std::function<bool()>& stop = {});

    /// Seconds of a decode step of all slots, each with a quarter of its capacity before it.
    /// Only while nothing is answered.
    double time_step();

    /// Tokens of answers since the beginning, those of unfinished answers included. From any
    /// thread.
    std::int64_t tokens_chosen() const { return tokens_chosen_.load(std::memory_order_relaxed); }

    Bytes cache_bytes() const { return cache_->bytes(); }

  private:
    struct Row;
    struct Reading;
    class Steps;

    void admit(const Next& next);
    bool prefill();
    bool decode();
    void choose(const std::vector<std::int32_t>& slots, const at::Tensor& logits_SV);
    void read_oldest(const Take& take);
    void drop_all();

    TargetModel& model_;
    GeneratorOptions options_;
    std::unique_ptr<DecodeCache> cache_;
    at::Tensor latest_;  // int32 [slots + 1], on the device: the token chosen last in each slot
    std::unique_ptr<Steps> steps_;
    std::vector<std::unique_ptr<Row>> rows_;  // by slot
    std::vector<std::unique_ptr<Reading>>
        readings_;  // tokens on their way to the host, oldest first
    std::vector<Sampling> rules_of_last_;
    std::unique_ptr<SamplingRules> rules_;
    std::int64_t next_ticket_ = 0;
    std::atomic<std::int64_t> tokens_chosen_ = 0;
};

}  // namespace dflash::target
