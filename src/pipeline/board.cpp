// SPDX-License-Identifier: Apache-2.0
#include "board.hpp"

#include <string>

namespace dflash::pipeline {

Board::Board(int num_slots, int num_threads) {
    for (int i = 0; i < num_slots; ++i) {
        slots_.emplace_back("slot " + std::to_string(i));
    }
    for (int i = 0; i < num_threads; ++i) {
        encodings_.emplace_back();
    }
}

Board::EncodeScope::EncodeScope(Board& board) {
    for (Encoding& encoding : board.encodings_) {
        if (!encoding.taken.exchange(true, std::memory_order_acquire)) {
            taken_ = &encoding.taken;
            activity_ = &encoding.activity;
            return;
        }
    }
}

// Delegates, so that the place is given back if the observer throws.
Board::EncodeScope::EncodeScope(Board& board, std::int64_t sample) : EncodeScope(board) {
    if (activity_ != nullptr) {
        scope_.emplace(*activity_, "encode sample", sample);
    }
}

Board::EncodeScope::~EncodeScope() {
    scope_.reset();
    if (taken_ != nullptr) {
        taken_->store(false, std::memory_order_release);
    }
}

PipelineSnapshot Board::snapshot() const {
    // Backwards, so that no message counts as having left a station that it did not reach.
    PipelineSnapshot picture;
    picture.rows_returned = arrivals.rows_returned;
    picture.rows_at_step = arrivals.rows_at_step;
    picture.rows_given_slots = arrivals.rows_given_slots;
    picture.rows_packed = arrivals.rows_packed;
    picture.samples_packed = arrivals.samples_packed;
    picture.samples_read = arrivals.samples_read;
    for (const Activity& slot : slots_) {
        picture.slots.push_back(slot.now());
    }
    const auto add = [&](const Activity& node) {
        if (const Activity::Now now = node.now(); !now.idle()) {
            picture.busy_nodes.emplace_back(node.who(), now);
        }
    };
    add(samples);
    for (const Encoding& encoding : encodings_) {
        add(encoding.activity);
    }
    add(pack);
    add(target);
    add(deliver);
    return picture;
}

}  // namespace dflash::pipeline
