// SPDX-License-Identifier: Apache-2.0
#include <dflash/data/packer.hpp>
#include <dflash/train/answer_schedule.hpp>
#include <dflash/train/progress.hpp>
#include <dflash/train/run_answers.hpp>

#include <unordered_set>

namespace dflash::train {
namespace {

// With weights of files no epoch may have all rows; further ones than these come in a later stage.
constexpr std::int64_t kMostEpochs = 16;

/// Walks the order of the run and collects.
class Walk {
  public:
    Walk(const PreparedRun& run, const Settings& settings, AnswerStage& stage)
        : run_(run), stage_(stage), shard_rows_(settings.generate.shard_rows) {
        for (const SampleId id : run.train_ids) {
            left_ += run.answers->pending(id) ? 1 : 0;
        }
    }

    /// Whether every row has been met.
    bool complete() const { return left_ == 0; }

    /// False at the end of the stage.
    bool epoch(std::int64_t epoch, std::int64_t first_window) {
        const std::int64_t window = run_.pack.window;
        const std::vector<SampleId> ids(run_.train_ids.begin(),
                                        run_.train_ids.begin() + run_.epoch_ids.in_epoch(epoch));
        const std::vector<SampleId> order =
            data::epoch_order(run_.mixture.draw(ids, run_.pack.seed, epoch), run_.pack.seed, epoch);
        for (std::int64_t place = first_window * window; place < std::ssize(order); ++place) {
            if (place % window == 0 && std::ssize(met_) >= shard_rows_ && !limit_) {
                limit_ = data::Cursor{.epoch = epoch, .window = place / window};
            }
            const SampleId id = order[static_cast<std::size_t>(place)];
            if (!run_.answers->pending(id) || met_.contains(id)) {
                continue;
            }
            if (limit_) {
                stage_.end = limit_;
                return false;
            }
            met_.insert(id);
            stage_.rows.push_back(id);
            --left_;
        }
        return true;
    }

    void stop_before(std::int64_t epoch) { stage_.end = data::Cursor{.epoch = epoch}; }

  private:
    const PreparedRun& run_;
    AnswerStage& stage_;
    std::int64_t shard_rows_;
    std::int64_t left_ = 0;
    std::unordered_set<SampleId> met_;
    std::optional<data::Cursor> limit_;
};

}  // namespace

AnswerStage next_stage(const PreparedRun& run, const Settings& settings, const data::Cursor& from) {
    AnswerStage stage;
    if (!run.answers) {
        return stage;
    }
    if (!run.evaluation) {
        for (const SampleId id : run.held_out_ids) {
            if (run.answers->pending(id)) {
                stage.rows.push_back(id);
            }
        }
    }
    const bool by_epochs = RunLength(settings.train, run.epoch_sizes).by_epochs();
    Walk walk(run, settings, stage);
    std::int64_t first_window = from.window;
    for (std::int64_t epoch = from.epoch; !walk.complete(); ++epoch) {
        if (by_epochs && epoch >= settings.train.epochs) {
            break;
        }
        if (epoch == from.epoch + kMostEpochs) {
            walk.stop_before(epoch);
            break;
        }
        if (!walk.epoch(epoch, std::exchange(first_window, 0))) {
            break;
        }
    }
    return stage;
}

}  // namespace dflash::train
