// SPDX-License-Identifier: Apache-2.0
#include <dflash/core/check.hpp>
#include <dflash/train/step.hpp>

#include <utility>

namespace dflash::train {

Step::Step(std::vector<std::unique_ptr<DrafterRank>>& ranks,
           std::vector<FeatureSlot>& slots,
           std::int64_t rows_per_step)
    : ranks_(ranks), slots_(slots), rows_per_step_(rows_per_step) {}

void Step::add(pipeline::RowLease row) {
    if (row.row()->empty()) {
        row.release();
        return;
    }
    const std::size_t rank = static_cast<std::size_t>(counts_.rows) % ranks_.size();
    DFLASH_CHECK(static_cast<std::size_t>(row.slot()) % ranks_.size() == rank,
                 "row {} of the step came in slot {}, which is not drafter {}'s",
                 counts_.rows,
                 row.slot(),
                 rank);
    counts_.rows += 1;
    counts_.tokens += row.row()->num_tokens();
    counts_.labels += static_cast<std::int64_t>(row.row()->blocks.labels.size());
    weight_sum_ += row.row()->blocks.weight_sum;

    DrafterRank& drafter = *ranks_[rank];
    FeatureSlot& slot = slots_[static_cast<std::size_t>(row.slot())];
    // A task must be copyable; the lease has one owner, so it travels behind a pointer.
    auto lease = std::make_shared<pipeline::RowLease>(std::move(row));
    drafter.worker().post([&drafter, &slot, lease] {
        drafter.add_row(*lease->row(), slot);
        lease->release();
    });
}

PendingStep Step::finish(double learning_rate) {
    PendingStep pending;
    pending.counts_ = std::exchange(counts_, StepReport{});
    pending.weight_sum_ = std::exchange(weight_sum_, 0.0);
    for (const auto& rank : ranks_) {
        // Not a packaged_task: an exception has to reach the run's first error at once, since the
        // other drafters wait for this one in the reduction.
        auto promise = std::make_shared<std::promise<StepResult>>();
        pending.results_.push_back(promise->get_future());
        pending.ranks_.push_back(rank.get());
        rank->worker().post(
            [promise, drafter = rank.get(), learning_rate, weight_sum = pending.weight_sum_] {
                promise->set_value(drafter->finish_step(learning_rate, weight_sum));
            });
    }
    return pending;
}

StepReport PendingStep::wait() {
    StepReport report = counts_;
    double correct = 0;
    double loss_sum = 0;
    for (std::size_t rank = 0; rank < results_.size(); ++rank) {
        // The tensors are read on the drafter's own worker, where the device is current.
        gpu::Worker& worker = ranks_[rank]->worker();
        std::future<StepResult>& future = results_[rank];
        worker.call([&] {
            const StepResult result = future.get();
            result.arrived.synchronize();
            const double* values = result.values.data_ptr<double>();
            loss_sum += values[0];
            correct += values[1];
            report.gradient_norm = values[2];
        });
    }
    report.loss = weight_sum_ > 0 ? loss_sum / weight_sum_ : 0;
    report.accuracy = report.labels > 0 ? correct / static_cast<double>(report.labels) : 0;
    return report;
}

}  // namespace dflash::train
