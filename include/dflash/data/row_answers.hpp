// SPDX-License-Identifier: Apache-2.0
// Rows that a model answers: what stands in their place.
#pragma once

#include <dflash/core/types.hpp>

#include <string>

namespace dflash::data {

/// Says of every row of a data set whether a model answers it, and how the row then reads.
class RowAnswers {
  public:
    enum class State {
        Own,       ///< the row is used as its file has it
        Pending,   ///< its answer is still to come
        Answered,  ///< `text` is the row with its answer
        Dropped,   ///< it was answered, and the answer is not used: `text` is the reason
        Refused,   ///< it cannot be answered: `text` says why, in a sentence
    };

    struct Found {
        State state = State::Own;
        std::string text{};
    };

    virtual ~RowAnswers() = default;

    /// From any thread.
    virtual Found find(SampleId id) const = 0;
};

/// Sample::dropped of a row whose answer is still to come.
inline constexpr const char* kPendingAnswer = "not_answered_yet";

/// Kind of refused rows that cannot be answered.
inline constexpr const char* kPromptTooLong = "prompt_too_long";

}  // namespace dflash::data
