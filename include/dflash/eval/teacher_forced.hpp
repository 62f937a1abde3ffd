// SPDX-License-Identifier: Apache-2.0
// The drafter judged as training judges it: finished text, the packed forward, every slot compared
// with the text. Beside real decoding it shows whether both see the same features.
#pragma once

#include <dflash/eval/decode_rounds.hpp>
#include <dflash/model/drafter.hpp>
#include <dflash/target/target_model.hpp>

#include <cstdint>
#include <span>
#include <vector>

namespace dflash::eval {

/// A text with a block at every anchor of its answer, positions begin .. begin + leading.size() -
/// 1: all of the answer but its last token.
struct TeacherForcedText {
    std::int64_t begin = 0;
    std::vector<std::int32_t> leading;  ///< right slots before the first wrong one, by anchor
};

/// Sums over texts; addition is exact, so their order does not matter.
class TeacherForcedSums {
  public:
    explicit TeacherForcedSums(std::int64_t block_size)
        : right_(static_cast<std::size_t>(block_size)),
          counted_(static_cast<std::size_t>(block_size)) {}

    TeacherForcedSums& operator+=(const TeacherForcedSums& other);

    std::int64_t texts() const { return texts_; }

    std::int64_t anchors() const { return anchors_; }

    /// Share of right predictions of slot k = 1 .. B - 1 over all anchors, at index k - 1.
    std::vector<double> right_by_slot() const;

    /// The acceptance length that greedy decoding would have if the target wrote exactly these
    /// texts: rounds follow each other as there, so hard places, where more rounds begin, weigh as
    /// much. A round whose block the end of the text cuts counts if a wrong slot comes before it.
    /// 0 without rounds.
    double walked_tau() const;

    bool operator==(const TeacherForcedSums&) const = default;

  private:
    friend class TeacherForced;
    void walk(const std::vector<std::int32_t>& leading);

    std::int64_t texts_ = 0;
    std::int64_t anchors_ = 0;
    std::int64_t rounds_ = 0;
    std::int64_t accepted_ = 0;
    std::vector<std::int64_t> right_;    // [B] by slot
    std::vector<std::int64_t> counted_;  // [B]
};

class TeacherForced {
  public:
    /// The target is used through capture(), the drafter through evaluate(): the paths of training.
    /// Both must outlive this.
    TeacherForced(target::TargetModel& target, model::Drafter& drafter);

    /// Judges the answer tokens[begin ...]. Waits for the device.
    const TeacherForcedText& add(std::span<const TokenId> tokens, std::int64_t begin);

    const TeacherForcedSums& sums() const { return sums_; }

  private:
    target::TargetModel& target_;
    model::Drafter& drafter_;
    TeacherForcedText last_;
    TeacherForcedSums sums_;
};

/// Of the rounds in which a text was really decoded, those that kept as many drafts as the packed
/// forward has right slots there; rounds that the end of the text cuts are compared up to it.
struct RoundAgreement {
    std::int64_t rounds = 0;
    std::int64_t equal = 0;

    void add(const TeacherForcedText& judged, const DecodedText& decoded);

    RoundAgreement& operator+=(const RoundAgreement& other) {
        rounds += other.rounds;
        equal += other.equal;
        return *this;
    }

    bool operator==(const RoundAgreement&) const = default;
};

}  // namespace dflash::eval
