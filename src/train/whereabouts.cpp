// SPDX-License-Identifier: Apache-2.0
#include <dflash/train/plan.hpp>
#include <dflash/train/whereabouts.hpp>

#include <algorithm>
#include <fmt/format.h>
#include <utility>

namespace dflash::train {
namespace {

/// What is read at one moment, and the lines that are made of it.
class PictureMaker {
  public:
    explicit PictureMaker(double stalled_s) : stalled_s_(stalled_s) {}

    void add_collectives(const comm::CollectiveBoard& board) {
        open_ = board.open();
        if (open_) {
            line("collective", fmt::format("{}, for {:.1f} s", open_->text(), open_->seconds));
        }
    }

    void add_worker(const WatchedWorker& worker) {
        const Activity::Now now = worker.board->activity.now();
        const std::string who = fmt::format("{} ({})", worker.board->activity.who(), worker.role);
        const bool in_collective =
            open_ && worker.rank &&
            std::count(open_->arrived.begin(), open_->arrived.end(), *worker.rank) > 0;
        line(who,
             fmt::format("{}{}; {} tasks queued",
                         doing(now),
                         in_collective ? ", in " + open_->name : "",
                         worker.board->queued.load()));
        // Where all ranks have come, it is the collective itself that does not end.
        if (!in_collective || open_->missing.empty()) {
            suspect(who, now);
        }
    }

    void add_pipeline(const pipeline::PipelineBoard& board) {
        const pipeline::PipelineSnapshot picture = board.snapshot();
        line("pipeline",
             fmt::format("{} samples read, {} of them in flight; {} rows packed, {} of them wait "
                         "for a slot; {} rows have come to the loop, {} slots given back",
                         picture.samples_read,
                         picture.samples_in_flight(),
                         picture.rows_packed,
                         picture.rows_waiting(),
                         picture.rows_at_step,
                         picture.rows_returned));
        for (const auto& [node, now] : picture.busy_nodes) {
            line("node " + node, doing(now));
            suspect("node " + node, now);
        }
        for (std::size_t i = 0; i < picture.slots.size(); ++i) {
            const Activity::Now& slot = picture.slots[i];
            line(
                fmt::format("slot {}", i),
                slot.idle()
                    ? "free"
                    : fmt::format("row {} {}, for {:.1f} s", slot.number, slot.what, slot.seconds));
        }
    }

    void add_thread(const Activity& activity) {
        const Activity::Now now = activity.now();
        line(activity.who(), doing(now));
        suspect(activity.who(), now);
    }

    /// Those seen so far go before those that follow; among them, who began first goes first, since
    /// what came later may wait for it without saying so.
    void rank_suspects() {
        std::stable_sort(suspects_.begin(), suspects_.end(), [](const auto& a, const auto& b) {
            return a.first > b.first;
        });
        for (auto& [seconds, text] : std::exchange(suspects_, {})) {
            picture_.suspects.push_back(std::move(text));
        }
    }

    Picture take() {
        rank_suspects();
        return std::move(picture_);
    }

  private:
    static std::string doing(const Activity::Now& now) {
        return now.idle() ? "nothing" : fmt::format("{}, for {:.1f} s", now.text(), now.seconds);
    }

    void line(const std::string& who, const std::string& text) {
        picture_.lines.push_back(fmt::format("{:<24} {}", who, text));
    }

    void suspect(const std::string& who, const Activity::Now& now) {
        if (!now.idle() && now.kind == Activity::Kind::Works && now.seconds >= stalled_s_) {
            suspects_.push_back({now.seconds, fmt::format("{}: {}", who, doing(now))});
        }
    }

    double stalled_s_;
    std::optional<comm::OpenCollective> open_;
    std::vector<std::pair<double, std::string>> suspects_;  // seconds, text
    Picture picture_;
};

/// The place of a position in a list of positions.
std::optional<int> place_in(const std::vector<int>& positions, int position) {
    const auto found = std::find(positions.begin(), positions.end(), position);
    return found == positions.end() ? std::nullopt
                                    : std::optional(static_cast<int>(found - positions.begin()));
}

}  // namespace

WatchedWorker watched_worker(const Roles& roles, const gpu::Worker& worker) {
    const std::optional<int> target = place_in(roles.targets, worker.device().position);
    const std::optional<int> drafter = place_in(roles.drafters, worker.device().position);
    std::string role = target ? fmt::format("target {}", *target) : "";
    if (drafter) {
        role += fmt::format("{}drafter {}", target ? " + " : "", *drafter);
    }
    return {.role = role.empty() ? "unused" : role, .rank = drafter, .board = worker.board()};
}

Activity& Whereabouts::add_thread(std::string name) {
    const std::lock_guard lock(mutex_);
    return threads_.emplace_back(std::move(name));
}

void Whereabouts::add_worker(WatchedWorker worker) {
    const std::lock_guard lock(mutex_);
    workers_.push_back(std::move(worker));
}

void Whereabouts::set_collectives(std::shared_ptr<const comm::CollectiveBoard> board) {
    const std::lock_guard lock(mutex_);
    collectives_ = std::move(board);
}

void Whereabouts::set_pipeline(std::shared_ptr<const pipeline::PipelineBoard> board) {
    const std::lock_guard lock(mutex_);
    pipeline_ = std::move(board);
}

void Whereabouts::forget_parts() {
    const std::lock_guard lock(mutex_);
    threads_.clear();
    workers_.clear();
    collectives_.reset();
    pipeline_.reset();
}

Picture Whereabouts::picture(double stalled_s) const {
    PictureMaker maker(stalled_s);
    // The order of suspicion: the loop often only waits for what it has others do.
    const std::unique_lock lock(mutex_, std::try_to_lock);
    if (lock) {
        if (collectives_) {
            maker.add_collectives(*collectives_);
        }
        for (const WatchedWorker& worker : workers_) {
            maker.add_worker(worker);
        }
        maker.rank_suspects();
        if (pipeline_) {
            maker.add_pipeline(*pipeline_);
        }
        for (const Activity& thread : threads_) {
            maker.add_thread(thread);
        }
        maker.rank_suspects();
    }
    maker.add_thread(loop_);
    return maker.take();
}

}  // namespace dflash::train
