// SPDX-License-Identifier: Apache-2.0
#include "bodies.hpp"

#include <dflash/core/check.hpp>

#include <string>
#include <vector>

namespace dflash::pipeline {
namespace {

int slot_of(const RowPtr& row, int num_slots) {
    return static_cast<int>(row->index % num_slots);
}

/// Gives the slot of a row back when it goes.
class SlotReturn : NonCopyable {
  public:
    SlotReturn(std::shared_ptr<RowsInFlight> in_step, RowPtr row)
        : in_step_(std::move(in_step)), row_(std::move(row)) {}

    ~SlotReturn() { in_step_->leave(row_); }

  private:
    std::shared_ptr<RowsInFlight> in_step_;
    RowPtr row_;
};

}  // namespace

data::SampleRef ReadSample::operator()(tbb::flow_control& control) {
    data::SampleRef ref{.index = next_index_, .end = true};
    const bool more = !ended_ && run_.guarded([&] {
        if (!run_.skips()) {
            const Activity::Scope activity(run_.board->samples, "sample", next_index_);
            ref = source_.next();
            DFLASH_CHECK(ref.index == next_index_,
                         "the source gave sample {}, expected {}",
                         ref.index,
                         next_index_);
        }
    });
    if (!more) {
        control.stop();
        return {};
    }
    ended_ = ref.end;
    ++next_index_;
    ++run_.board->arrivals.samples_read;
    if (!ref.end) {
        ++run_.samples_read;
    }
    return ref;
}

EncodedSample EncodeSample::operator()(const data::SampleRef& ref) const {
    EncodedSample message{.index = ref.index, .end = ref.end, .sample = nullptr};
    if (run_.skips()) {
        return message;
    }
    run_.guarded([&] {
        const Board::EncodeScope activity(*run_.board, ref.index);
        auto sample = std::make_shared<data::Sample>(encoder_.encode(ref));
        DFLASH_CHECK(sample->ref.index == ref.index && sample->ref.end == ref.end,
                     "the encoder answered sample {} with sample {}",
                     ref.index,
                     sample->ref.index);
        if (!sample->dropped.empty()) {
            ++run_.samples_dropped;
        }
        message.sample = std::move(sample);
    });
    return message;
}

void PackSamples::operator()(const EncodedSample& sample, OutputPorts& ports) {
    run_.guarded([&] {
        DFLASH_CHECK(sample.index == next_sample_,
                     "sample {} reached the packer, expected {}",
                     sample.index,
                     next_sample_);
        ++next_sample_;
        ++unreturned_;
        ++run_.board->arrivals.samples_packed;
        if (sample.sample == nullptr || run_.skips()) {
            data::PackedRow carrier;
            carrier.index = next_row_;
            carrier.num_samples = unreturned_;
            carrier.end = sample.end;
            send(std::move(carrier), ports);
            return;
        }
        note_progress();
        const Activity::Scope activity(run_.board->pack, "pack sample", sample.index);
        for (data::PackedRow& row : packer_.push(std::move(*sample.sample))) {
            DFLASH_CHECK(!row.end || sample.end, "the packer made END of sample {}", sample.index);
            send(std::move(row), ports);
        }
        DFLASH_CHECK(ended_ == sample.end, "the packer did not answer END with END");
        // Limiter A lets no more samples in, so a packer that still waits for some waits for ever.
        DFLASH_CHECK(sample.end || unreturned_ < max_in_flight_,
                     "the packer holds {} samples, expected less than {}: a row must bring back "
                     "every sample, and a window must not be larger than the pipeline's",
                     unreturned_,
                     max_in_flight_);
    });
}

void PackSamples::send(data::PackedRow row, OutputPorts& ports) {
    DFLASH_CHECK(!ended_ && row.index == next_row_,
                 "the packer gave row {}, expected {}",
                 row.index,
                 ended_ ? "none after END" : std::to_string(next_row_));
    DFLASH_CHECK(row.num_samples >= 0 && row.num_samples <= unreturned_,
                 "row {} brings back {} samples, but only {} are out",
                 row.index,
                 row.num_samples,
                 unreturned_);
    ++next_row_;
    unreturned_ -= row.num_samples;
    ended_ = row.end;
    ++run_.board->arrivals.rows_packed;
    slots_.row_packed();
    std::get<0>(ports).try_put(std::make_shared<const data::PackedRow>(std::move(row)));
}

void StartTarget::operator()(const RowPtr& row, RowGateway& gateway) {
    run_.guarded([&] {
        ++run_.board->arrivals.rows_given_slots;
        slots_.row_given_slot();
        if (row->end || run_.skips()) {
            slots_.target_finished();
            gateway.try_put(row);
        } else if (in_target_->enter(row->index, gateway)) {
            const Activity::Scope activity(run_.board->target, "hand over row", row->index);
            run_.board->slot_of(row->index).set("in the target", row->index);
            target_.start(
                row, slot_of(row, num_slots_), [in_target = in_target_, row, board = run_.board] {
                    board->slot_of(row->index).set("behind earlier rows", row->index);
                    in_target->leave(row);
                });
        }
    });
}

void DeliverRow::operator()(const RowPtr& row, RowGateway& gateway) {
    run_.guarded([&] {
        DFLASH_CHECK(
            row->index == next_row_, "row {} reached the step, expected {}", row->index, next_row_);
        ++next_row_;
        ++run_.board->arrivals.rows_at_step;
        run_.tokens_captured += row->num_tokens();
        if (row->end) {
            ready_.end();
        }
        if (row->end || run_.skips()) {
            gateway.try_put(row);
        } else if (in_step_->enter(row->index, gateway)) {
            const Activity::Scope activity(run_.board->deliver, "deliver row", row->index);
            run_.board->slot_of(row->index).set("ready for the loop", row->index);
            // If stop() came in between, the row is dropped by `ready_`, which returns its slot.
            ready_.push({.slot_return = std::make_shared<SlotReturn>(in_step_, row),
                         .row = row,
                         .slot = slot_of(row, num_slots_)});
        }
    });
}

tbb::flow::continue_msg FreeSlot::operator()(const RowPtr& row) {
    slots_.slot_returned();
    run_.board->slot_of(row->index).set(nullptr);
    ++run_.board->arrivals.rows_returned;
    if (row->end) {
        run_.board->arrivals.end_returned = true;
    }
    return {};
}

}  // namespace dflash::pipeline
