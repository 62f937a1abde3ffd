// SPDX-License-Identifier: Apache-2.0
// Real decoding on several devices: prompts are dealt to them in groups, and what comes out does
// not depend on how many there are.
#pragma once

#include <dflash/core/scope.hpp>
#include <dflash/eval/decode_rounds.hpp>
#include <dflash/eval/greedy_check.hpp>
#include <dflash/eval/teacher_forced.hpp>
#include <dflash/gpu/worker.hpp>
#include <dflash/model/draft_decoder.hpp>
#include <dflash/model/drafter.hpp>
#include <dflash/target/target_model.hpp>

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

namespace dflash::train {

class KernelStart;

/// A target with all its layers and its head, and a drafter beside it, on one worker, which does
/// all of their work. The drafter's weights are for inference.
struct DecodingSite {
    gpu::Worker* worker = nullptr;
    target::TargetModel* target = nullptr;
    std::unique_ptr<target::TargetModel> own_target{};  ///< where nobody else owns it
    std::unique_ptr<model::Drafter> drafter{};          ///< judges finished text as training does
    std::unique_ptr<model::DraftDecoder> decoder{};     ///< of the same weights
};

/// Makes the drafter of a site, without weights, on its worker. `kernels` must outlive it.
void add_drafter(DecodingSite& site, const model::DraftConfig& config, const KernelStart& kernels);

enum class Decoding {
    Generator,  ///< plain, as fast as it goes
    Rounds,     ///< plain, by the loop of rounds: with the logits' leads
    Lookup,
    Drafter,
};

/// A text to be judged as training judges it.
struct JudgedText {
    std::vector<TokenId> tokens;                 ///< prompt and answer
    std::int64_t begin = 0;                      ///< of the answer
    const eval::DecodedText* decoded = nullptr;  ///< its rounds, to be compared
};

struct JudgedTexts {
    eval::TeacherForcedSums sums;
    eval::RoundAgreement agreement;
};

/// Used by one thread, which waits; the work is done on the sites' workers. Every device keeps the
/// slots of the largest tasks so far, and the graphs of rounds in them.
class DecodingPool : NonCopyable {
  public:
    explicit DecodingPool(std::vector<DecodingSite> sites);
    ~DecodingPool();

    /// Sets the weights of all drafters: flat, as model::DraftWeights has them.
    void set_weights(const at::Tensor& flat);

    /// Decodes tasks in groups of options.slots that follow each other in the order of the tasks;
    /// a group begins with empty slots, so its texts, bit for bit, do not depend on who decodes it.
    /// Times are sums over devices. `stop` and `on_progress` of the options are called from several
    /// threads, the latter by one at a time with sums over all groups. Throws what a device throws.
    eval::DecodeRun decode(Decoding how,
                           std::span<const eval::DecodeTask> tasks,
                           const eval::DecodeOptions& options);

    /// Makes slots for these tasks and captures graphs; then every group on every device, for
    /// `rounds` rounds each with all sequences, half of them, a quarter and so on to one: libraries
    /// load and allocate what a decode() of these tasks needs.
    void warm_up(Decoding how,
                 std::span<const eval::DecodeTask> tasks,
                 const eval::DecodeOptions& options,
                 int rounds);

    /// Judges all texts, or fewer when a stop is asked for.
    JudgedTexts judge(std::span<const JudgedText> texts, const std::function<bool()>& stop = {});

    /// The same text on every device, whole and cut to half, a quarter and so on, for nothing; it
    /// must be as long as any that judge() and compare() are to see.
    void warm_up_judging(const JudgedText& text);

    /// Compares greedy texts of the same tasks with plain ones, as eval::compare_greedy does; where
    /// it cannot tell, the target is asked again.
    eval::GreedyComparison compare(std::span<const eval::DecodeTask> tasks,
                                   std::span<const eval::DecodedText> plain,
                                   std::span<const eval::DecodedText> drafted,
                                   const std::function<std::string(std::int64_t)>& name_of);

    const model::DraftConfig& config() const { return sites_.front().drafter->config(); }

    std::size_t num_sites() const { return sites_.size(); }

  private:
    class Groups;
    struct Rounds;
    Rounds& rounds_of(std::size_t site,
                      Decoding how,
                      std::span<const eval::DecodeTask> tasks,
                      const eval::DecodeOptions& options);
    void on_all(const char* what,
                const std::function<void(std::size_t site)>& body,
                const std::function<void()>& on_error = {});

    std::vector<DecodingSite> sites_;
    std::vector<std::unique_ptr<Rounds>> rounds_;  // by site, made by its worker
};

}  // namespace dflash::train
