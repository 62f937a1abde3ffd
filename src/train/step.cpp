// SPDX-License-Identifier: Apache-2.0
#include <dflash/core/check.hpp>
#include <dflash/train/step.hpp>

#include <cmath>
#include <string>
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
    std::vector<SampleId>& samples = row_samples_.emplace_back();
    for (const data::Document& document : row.row()->documents) {
        samples.push_back(document.id);
    }

    DrafterRank& drafter = *ranks_[rank];
    divisor_ += drafter.divisor_of(*row.row());
    FeatureSlot& slot = slots_[static_cast<std::size_t>(row.slot())];
    // A task must be copyable; the lease has one owner, so it travels behind a pointer.
    auto lease = std::make_shared<pipeline::RowLease>(std::move(row));
    drafter.worker().post({"train row", lease->row()->index}, [&drafter, &slot, lease] {
        drafter.add_row(*lease->row(), slot);
        lease->release();
    });
}

PendingStep Step::finish(std::int64_t number, double learning_rate) {
    PendingStep pending;
    pending.number_ = number;
    pending.counts_ = std::exchange(counts_, StepReport{});
    pending.row_samples_ = std::exchange(row_samples_, {});
    pending.divisor_ = std::exchange(divisor_, 0.0);
    for (const auto& rank : ranks_) {
        // Not a packaged_task: an exception has to reach the run's first error at once, since the
        // other drafters wait for this one in the reduction.
        auto promise = std::make_shared<std::promise<StepResult>>();
        pending.results_.push_back(promise->get_future());
        pending.ranks_.push_back(rank.get());
        rank->worker().post(
            {"finish step", number},
            [promise, drafter = rank.get(), learning_rate, divisor = pending.divisor_] {
                promise->set_value(drafter->finish_step(learning_rate, divisor));
            });
    }
    return pending;
}

StepReport PendingStep::wait() {
    StepReport report = counts_;
    double correct = 0;
    double loss_sum = 0;
    std::vector<StepValues> values(results_.size());
    for (std::size_t rank = 0; rank < results_.size(); ++rank) {
        // The tensors are read on the drafter's own worker, where the device is current.
        gpu::Worker& worker = ranks_[rank]->worker();
        std::future<StepResult>& future = results_[rank];
        worker.call({"result of step", number_}, [&] {
            const StepResult result = future.get();
            values[rank] = result.read();
        });
        double rank_loss = 0;
        for (const RowValues& row : values[rank].rows) {
            rank_loss += row.loss;
            correct += row.correct;
        }
        loss_sum += rank_loss;
    }
    report.gradient_norm = values.front().norm;
    report.non_finite = why_skipped(values);
    report.loss = divisor_ > 0 ? loss_sum / divisor_ : 0;
    report.accuracy = report.labels > 0 ? correct / static_cast<double>(report.labels) : 0;
    return report;
}

std::optional<NonFinite> PendingStep::why_skipped(const std::vector<StepValues>& values) const {
    const bool skipped = !std::isfinite(values.front().norm);
    for (const StepValues& of_rank : values) {
        DFLASH_CHECK(std::isfinite(of_rank.norm) != skipped,
                     "a step was taken by some drafters and skipped by others");
    }
    if (!skipped) {
        return std::nullopt;
    }
    std::vector<RowEvidence> rows;
    for (std::size_t j = 0; j < row_samples_.size(); ++j) {
        const std::size_t drafter = j % values.size();
        const RowValues& row = values[drafter].rows.at(j / values.size());
        rows.push_back({.samples = row_samples_[j],
                        .loss = row.loss,
                        .largest_feature = row.largest_feature,
                        .gradient_so_far = row.gradient_probe,
                        .drafter = static_cast<std::int64_t>(drafter)});
    }
    const std::vector<double>& norms = values.front().piece_norms;
    const std::vector<std::string> names = ranks_.front()->piece_names();
    std::vector<GradientEvidence> gradients;
    for (std::size_t i = 0; i < norms.size(); ++i) {
        gradients.push_back({names[i], norms[i]});
    }
    return find_non_finite(rows, gradients);
}

}  // namespace dflash::train
