// SPDX-License-Identifier: Apache-2.0
#include <dflash/data/anchors.hpp>
#include <dflash/eval/bigram.hpp>
#include <dflash/tensor/bridge.hpp>
#include <dflash/train/evaluator.hpp>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <exception>
#include <thread>

namespace dflash::train {
namespace {

// Enough pairs for a table that no longer changes; a bound, so that start-up does not grow with the
// data.
constexpr std::size_t kBigramSamples = 20000;

}  // namespace

HeldOutRows pack_held_out(const data::Dataset& dataset,
                          const std::vector<SampleId>& ids,
                          const data::PackOptions& options) {
    HeldOutRows held_out;
    data::PackedRow row;
    const auto close_row = [&] {
        if (!row.empty()) {
            row.index = static_cast<std::int64_t>(held_out.rows.size());
            held_out.rows.push_back(std::move(row));
        }
        row = {};
    };
    for (const SampleId id : ids) {
        const data::Sample sample = dataset.encode(id);
        const auto anchors = data::draw_anchors(
            sample.trainable, options.block, options.seed, /*epoch=*/0, id, /*held_out=*/true);
        if (anchors.empty()) {
            continue;
        }
        ++held_out.samples;
        const bool too_long =
            row.num_tokens() + static_cast<std::int64_t>(sample.tokens.size()) > options.row_tokens;
        const bool too_many = row.blocks.num_blocks() + static_cast<std::int64_t>(anchors.size()) >
                              options.row_anchors;
        if (too_long || too_many) {
            close_row();
        }
        data::append_document(row, id, sample.tokens);
        data::append_blocks(row, sample.trainable, anchors, options.block);
    }
    close_row();
    return held_out;
}

std::int64_t num_held_out(double fraction, std::int64_t num_samples) {
    if (fraction <= 0) {
        return 0;
    }
    const auto share =
        static_cast<std::int64_t>(std::ceil(fraction * static_cast<double>(num_samples)));
    const std::int64_t at_least = std::min<std::int64_t>(16, num_samples / 10);
    return std::clamp<std::int64_t>(share, at_least, 512);
}

Evaluator::Evaluator(HeldOutRows rows,
                     const data::Dataset& training,
                     const std::vector<SampleId>& training_ids,
                     std::int32_t block_size,
                     std::vector<std::unique_ptr<TargetReplica>>& targets,
                     std::vector<std::unique_ptr<DrafterRank>>& ranks,
                     const EvalSettings& settings)
    : rows_(std::move(rows)),
      block_size_(block_size),
      bigram_(block_size),
      settings_(settings),
      budget_{.max_fraction = settings.max_fraction} {
    // Two lanes let target and drafter work at the same time where they are one of each.
    const std::size_t num_lanes =
        std::min(std::max({targets.size(), ranks.size(), std::size_t{2}}), rows_.rows.size());
    for (std::size_t i = 0; i < num_lanes; ++i) {
        lanes_.push_back({targets[i % targets.size()].get(), ranks[i % ranks.size()].get(), {}});
    }
    if (empty()) {
        return;
    }
    eval::BigramTable table;
    for (std::size_t i = 0; i < std::min(kBigramSamples, training_ids.size()); ++i) {
        const data::Sample sample = training.encode(training_ids[i]);
        table.add(sample.tokens, sample.trainable);
    }
    table.finish();
    for (const data::PackedRow& row : rows_.rows) {
        bigram_.add(row.blocks, table.predict(row));
    }
}

void Evaluator::allocate(std::int64_t num_features, std::int64_t hidden_size) {
    std::int64_t longest = 0;
    for (const data::PackedRow& row : rows_.rows) {
        longest = std::max(longest, row.num_tokens());
    }
    for (Lane& lane : lanes_) {
        lane.rank->worker().call({"make a slot"}, [&] {
            lane.slot = lane.rank->make_slot(num_features, longest, hidden_size);
        });
    }
}

bool Evaluator::due(const Progress& progress) const {
    const double now = progress.trained_s;
    return !empty() && now - last_at_s_ >= settings_.every.seconds && budget_.allows_judging(now);
}

std::optional<EvalResult> Evaluator::run(const Progress& progress, const StopSignals& signals) {
    const auto start = std::chrono::steady_clock::now();
    std::vector<RowOutcome> outcomes(rows_.rows.size());
    std::vector<std::thread> threads;
    std::vector<std::exception_ptr> errors(lanes_.size());
    for (std::size_t i = 0; i < lanes_.size(); ++i) {
        threads.emplace_back([&, i] {
            try {
                run_lane(lanes_[i], i, lanes_.size(), signals, outcomes);
            } catch (...) {
                errors[i] = std::current_exception();
            }
        });
    }
    for (std::thread& thread : threads) {
        thread.join();
    }
    for (const std::exception_ptr& error : errors) {
        if (error) {
            std::rethrow_exception(error);
        }
    }

    if (!std::all_of(
            outcomes.begin(), outcomes.end(), [](const RowOutcome& row) { return row.done; })) {
        return std::nullopt;
    }
    // Summed in the order of rows, so that the result does not depend on the lanes.
    eval::HeldOutScore score(block_size_);
    double loss_sum = 0;
    double weight_sum = 0;
    for (std::size_t i = 0; i < outcomes.size(); ++i) {
        score.add(rows_.rows[i].blocks, outcomes[i].predicted);
        loss_sum += outcomes[i].loss_sum;
        weight_sum += rows_.rows[i].blocks.weight_sum;
    }
    EvalResult result;
    result.accuracy_by_slot = score.accuracy_by_slot();
    result.accuracy = score.accuracy();
    result.acceptance_length = score.acceptance_length();
    result.loss = weight_sum > 0 ? loss_sum / weight_sum : 0;
    result.bigram_accuracy_by_slot = bigram_.accuracy_by_slot();
    result.bigram_acceptance_length = bigram_.acceptance_length();
    result.blocks = score.num_blocks();
    result.seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    last_at_s_ = progress.trained_s;
    budget_.judged_s += result.seconds;
    return result;
}

void Evaluator::run_lane(Lane& lane,
                         std::size_t first,
                         std::size_t stride,
                         const StopSignals& signals,
                         std::vector<RowOutcome>& outcomes) {
    for (std::size_t i = first; i < rows_.rows.size() && !signals.stop_requested(); i += stride) {
        const data::PackedRow& row = rows_.rows[i];
        const auto number = static_cast<std::int64_t>(i);
        lane.target->worker().call({"capture held-out row", number},
                                   [&] { lane.target->capture(row, lane.slot); });
        lane.rank->worker().call({"predict held-out row", number}, [&] {
            const DrafterRank::Prediction prediction = lane.rank->predict(row, lane.slot);
            outcomes[i] = {prediction.argmax, prediction.loss_sum, /*done=*/true};
        });
    }
}

}  // namespace dflash::train
