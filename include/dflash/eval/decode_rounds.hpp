// SPDX-License-Identifier: Apache-2.0
// Draft and verify: many prompts at once, each in rounds of drafts that the target verifies in one
// pass over a block.
//
// A round of a sequence: the last token (the anchor) and its drafts go through the target; a drafts
// are kept, and the target's own next token behind them, the bonus token, is added. So a round
// gives a + 1 tokens, and the bonus token is the anchor of the next one.
#pragma once

#include <dflash/core/scope.hpp>
#include <dflash/eval/draft_source.hpp>
#include <dflash/target/target_model.hpp>

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

namespace dflash::eval {

class RoundSteps;

/// Tokens of prompts that are read in one pass, unless one alone is longer.
inline constexpr std::int64_t kMostPromptTokens = 4096;

struct DecodeTask {
    std::int64_t id = 0;  ///< names the sequence in uniform numbers: tasks of one id and prompt get
                          ///< the same text whatever they are decoded with
    std::vector<TokenId> prompt;
    std::int64_t max_new_tokens = 0;
};

struct DecodeOptions {
    ChoiceRule rule{};
    std::vector<TokenId> stop_tokens{};
    std::int64_t slots = 8;  ///< sequences at a time
    std::int64_t room = 0;   ///< slots hold so many tokens behind each prompt, whatever tasks want
    /// Called after each round and when a prompt has been read: texts that are done, tokens emitted
    /// by all.
    std::function<void(std::int64_t, std::int64_t)> on_progress{};
    /// Asked before each round: gives up, and the texts are worth nothing.
    std::function<bool()> stop{};
};

struct Round {
    std::int64_t start = 0;  ///< position of the anchor
    std::vector<TokenId> drafted;
    std::int64_t accepted = 0;
    TokenId bonus = -1;
};

/// The target's two largest logits where it chose a token greedily.
struct Lead {
    float best = 0;
    TokenId second_token = -1;
    float second = 0;
};

struct DecodedText {
    std::int64_t id = 0;
    std::vector<TokenId> emitted;  ///< the first one comes from the prompt's own pass; a stop token
                                   ///< is kept and ends the text
    std::vector<Lead> leads;       ///< of each emitted token; greedy only
    std::vector<Round> rounds;     ///< the last one whole, though `emitted` may end within it
    bool stopped = false;          ///< ended by a stop token, not by its length
};

struct DecodeRun {
    std::vector<DecodedText> texts;  ///< in the order of the tasks
    double prompts_s = 0;            ///< time for reading prompts, first tokens included
    double rounds_s = 0;             ///< time for all the rest
    bool complete = true;            ///< not given up

    /// Tokens that rounds emitted: those behind each text's first.
    std::int64_t round_tokens() const;

    /// Passes of single sequences through the target in rounds.
    std::int64_t target_calls() const;
};

/// Tokens that slots need for tasks in blocks of `block_size`: blocks are never shortened, so there
/// is a block of room behind the longest text. Internal error for an empty prompt or a length of 0.
std::int64_t slot_capacity(std::span<const DecodeTask> tasks,
                           const DecodeOptions& options,
                           std::int64_t block_size);

/// What a round computes.
enum class RoundShapes {
    Exact,   ///< blocks of the sequences that there are; of drafts that come by the host as many as
             ///< there are
    Fixed,   ///< whole blocks of the next number of sequences that would have a graph
    Graphs,  ///< the same from CUDA graphs; Exact where there can be none
};

/// Slots of a target that stay where they are from one decode() to the next, so that rounds of
/// drafts can be replayed from CUDA graphs. A round then has a fixed block of every sequence, of
/// which nothing comes by the host but one small message at its end, and rows of nobody up to the
/// next size that has a graph.
class RoundDecoder : NonCopyable {
  public:
    /// `target` must be loaded with its head, and outlive this.
    RoundDecoder(target::TargetModel& target, std::int64_t slots, std::int64_t capacity);
    ~RoundDecoder();

    std::int64_t slots() const;
    std::int64_t capacity() const;

    /// Makes room for a source, which must outlive this. Graphs are captured if steps of the target
    /// and what drafts can be, and never of a source that is told features by the host, which has
    /// no fixed shapes either.
    void prepare(DraftSource& source, RoundShapes shapes);

    /// Decodes all tasks with a source that was prepared; a slot takes the next one when its text
    /// has ended: with a stop token, or with max_new_tokens. What a text holds depends on its id
    /// and prompt only, up to the rounding of batches of another shape.
    ///
    /// Internal error for an empty prompt, a length of 0 or a task that does not fit. On the
    /// target's worker; waits for the device in every round.
    DecodeRun decode(DraftSource& source,
                     std::span<const DecodeTask> tasks,
                     const DecodeOptions& options);

  private:
    target::TargetModel& target_;
    std::unique_ptr<target::DecodeCache> cache_;
    std::vector<std::unique_ptr<RoundSteps>> steps_;  // of sources, in the order of their graphs
};

/// The same once, in slots made for these tasks, without graphs.
DecodeRun decode(target::TargetModel& target,
                 DraftSource& drafts,
                 std::span<const DecodeTask> tasks,
                 const DecodeOptions& options);

}  // namespace dflash::eval
