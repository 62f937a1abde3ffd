// SPDX-License-Identifier: Apache-2.0
#include <dflash/core/check.hpp>
#include <dflash/train/row_stream.hpp>

#include <iterator>
#include <utility>

namespace dflash::train {

EpochSource::EpochSource(std::vector<SampleId> samples,
                         EpochSizes sizes,
                         data::Mixture mixture,
                         std::uint64_t seed,
                         std::int64_t window,
                         data::Cursor start,
                         std::optional<std::int64_t> num_epochs,
                         std::optional<data::Cursor> stop)
    : samples_(std::move(samples)),
      sizes_(std::move(sizes)),
      mixture_(std::move(mixture)),
      seed_(seed),
      window_(window),
      num_epochs_(num_epochs),
      stop_(stop),
      epoch_(start.epoch),
      place_(start.window * window) {
    DFLASH_CHECK(sizes_.in_epoch(epoch_) <= std::ssize(samples_),
                 "{} samples, but epoch {} has {}",
                 samples_.size(),
                 epoch_,
                 sizes_.in_epoch(epoch_));
}

std::span<const SampleId> EpochSource::drawn_of() const {
    return std::span(samples_).first(static_cast<std::size_t>(sizes_.in_epoch(epoch_)));
}

data::SampleRef EpochSource::next() {
    data::SampleRef ref;
    ref.index = index_++;
    if (place_ >= mixture_.num_samples(drawn_of())) {
        ++epoch_;
        place_ = 0;
        order_.clear();
    }
    const bool stops = stop_ && (epoch_ > stop_->epoch ||
                                 (epoch_ == stop_->epoch && place_ >= stop_->window * window_));
    if (stops || (num_epochs_ && epoch_ >= *num_epochs_)) {
        ref.end = true;
        return ref;
    }
    if (order_.empty()) {
        order_ = data::epoch_order(mixture_.draw(drawn_of(), seed_, epoch_), seed_, epoch_);
    }
    ref.epoch = epoch_;
    ref.place = place_;
    ref.id = order_[static_cast<std::size_t>(place_)];
    ref.last_of_epoch = place_ + 1 == std::ssize(order_);
    ++place_;
    return ref;
}

data::Sample DatasetEncoder::encode(const data::SampleRef& ref) {
    if (ref.end) {
        data::Sample end;
        end.ref = ref;
        return end;
    }
    data::Sample sample = dataset_.encode(ref.id);
    DFLASH_CHECK(sample.dropped != data::kPendingAnswer, "sample {} has no answer yet", ref.id);
    sample.ref = ref;
    return sample;
}

StepRowPacker::StepRowPacker(data::PackOptions options,
                             data::Cursor start,
                             std::int64_t rows_per_step,
                             int num_drafters)
    : packer_(std::move(options), start),
      rows_per_step_(rows_per_step),
      num_drafters_(num_drafters) {}

std::vector<data::PackedRow> StepRowPacker::push(data::Sample sample) {
    std::vector<data::PackedRow> rows;
    for (data::PackedRow& row : packer_.push(std::move(sample))) {
        append(rows, std::move(row));
    }
    return rows;
}

void StepRowPacker::append(std::vector<data::PackedRow>& rows, data::PackedRow row) {
    const data::Cursor next = row.next;
    const bool empty = row.empty();
    const bool end = row.end;
    row.index = next_index_++;
    rows.push_back(std::move(row));
    if (end) {
        return;
    }
    if (empty) {
        pad(rows, num_drafters_ - 1, next);
    } else if (++rows_in_step_ == rows_per_step_) {
        rows_in_step_ = 0;
        pad(rows, (num_drafters_ - rows_per_step_ % num_drafters_) % num_drafters_, next);
    }
}

void StepRowPacker::pad(std::vector<data::PackedRow>& rows,
                        std::int64_t count,
                        const data::Cursor& next) {
    for (std::int64_t i = 0; i < count; ++i) {
        data::PackedRow padding;
        padding.index = next_index_++;
        padding.next = next;
        rows.push_back(std::move(padding));
    }
}

}  // namespace dflash::train
