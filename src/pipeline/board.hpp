// SPDX-License-Identifier: Apache-2.0
// The writing side of PipelineBoard: the bodies of the graph note here what they do.
#pragma once

#include "arrivals.hpp"

#include <dflash/core/activity.hpp>
#include <dflash/pipeline/pipeline_board.hpp>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>

namespace dflash::pipeline {

class Board final : public PipelineBoard, NonCopyable {
  public:
    /// At most `num_threads` samples are encoded at the same time.
    Board(int num_slots, int num_threads);

    PipelineSnapshot snapshot() const override;

    // Of the serial nodes.
    Activity samples{"samples"};
    Activity pack{"pack"};
    Activity target{"target"};
    Activity deliver{"step"};

    /// An activity for one call of the encoder; more calls at a time than were announced go
    /// without.
    class EncodeScope : NonCopyable {
      public:
        EncodeScope(Board& board, std::int64_t sample);
        ~EncodeScope();

      private:
        explicit EncodeScope(Board& board);

        std::atomic<bool>* taken_ = nullptr;
        Activity* activity_ = nullptr;
        std::optional<Activity::Scope> scope_;
    };

    /// The slot that a row holds, or is to hold.
    Activity& slot_of(std::int64_t row) {
        return slots_[static_cast<std::size_t>(row) % slots_.size()];
    }

    Arrivals arrivals;

  private:
    struct Encoding {
        Activity activity{"encode"};
        std::atomic<bool> taken = false;
    };

    std::deque<Encoding> encodings_;
    std::deque<Activity> slots_;
};

}  // namespace dflash::pipeline
