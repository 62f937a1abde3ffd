// SPDX-License-Identifier: Apache-2.0
#include "scenario.hpp"

#include <dflash/pipeline/replica_dispatcher.hpp>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fmt/format.h>
#include <memory>
#include <numeric>
#include <utility>

namespace dflash::pipeline {
namespace {

/// Ends the process, loudly, if it lives longer than `seconds`.
class Deadline {
  public:
    Deadline(int seconds, std::string text) : text_(std::move(text)) {
        thread_ = std::thread([this, seconds] {
            std::unique_lock lock(mutex_);
            if (!changed_.wait_for(lock, std::chrono::seconds(seconds), [this] { return over_; })) {
                fmt::print(stderr, "still running after {} s: {}\n", seconds, text_);
                std::abort();
            }
        });
    }

    ~Deadline() {
        {
            const std::lock_guard lock(mutex_);
            over_ = true;
        }
        changed_.notify_one();
        thread_.join();
    }

    Deadline(const Deadline&) = delete;
    Deadline& operator=(const Deadline&) = delete;

  private:
    std::string text_;
    std::mutex mutex_;
    std::condition_variable changed_;
    bool over_ = false;
    std::thread thread_;
};

/// Lets rows go on a thread of its own, like a drafter's worker that has finished with them.
class Releaser {
  public:
    explicit Releaser(FakeSlots& slots) : slots_(slots), thread_([this] { run(); }) {}

    ~Releaser() { join(); }

    Releaser(const Releaser&) = delete;
    Releaser& operator=(const Releaser&) = delete;

    void add(RowLease lease) {
        {
            const std::lock_guard lock(mutex_);
            leases_.push_back(std::move(lease));
        }
        changed_.notify_one();
    }

    void join() {
        {
            const std::lock_guard lock(mutex_);
            over_ = true;
        }
        changed_.notify_one();
        if (thread_.joinable()) {
            thread_.join();
        }
    }

  private:
    void run() {
        std::unique_lock lock(mutex_);
        for (;;) {
            changed_.wait(lock, [this] { return over_ || !leases_.empty(); });
            if (leases_.empty()) {
                return;
            }
            RowLease lease = std::move(leases_.front());
            leases_.pop_front();
            lock.unlock();
            slots_.let_go(lease.slot());
            lease.release();
            lock.lock();
        }
    }

    FakeSlots& slots_;
    std::mutex mutex_;
    std::condition_variable changed_;
    std::deque<RowLease> leases_;
    bool over_ = false;
    std::thread thread_;
};

/// The training loop: takes rows, holds some, lets them go in random order.
class Loop {
  public:
    Loop(const Scenario& scenario, Pipeline& pipeline, FakeSlots& slots, FirstError& first_error)
        : scenario_(scenario),
          pipeline_(pipeline),
          slots_(slots),
          first_error_(first_error),
          random_(scenario.seed) {
        if (scenario.release_elsewhere || scenario.keep_leases) {
            releaser_ = std::make_unique<Releaser>(slots);
        }
    }

    void run(Outcome& outcome) {
        try {
            while (!scenario_.stop_after || std::ssize(outcome.rows) < *scenario_.stop_after) {
                std::optional<RowLease> lease = pipeline_.next();
                if (!lease) {
                    break;
                }
                look_at(*lease, outcome);
                held_.push_back(std::move(*lease));
                if (scenario_.fault.hits(Fault::At::Loop, outcome.rows.back())) {
                    fail();
                }
                if (std::ssize(held_) >= scenario_.rows_held) {
                    let_one_go(random_one());
                }
                // Slots go back in order, so row i + slots never comes while row i is held.
                while (!held_.empty() && held_.front().row()->index + scenario_.num_slots <=
                                             std::ssize(outcome.rows)) {
                    let_one_go(0);
                }
            }
        } catch (const std::exception& error) {
            outcome.next_error = error.what();
        }
        if (scenario_.keep_leases) {
            // The releaser gets them while stop() already waits.
            late_ = std::thread([this] {
                std::this_thread::sleep_for(std::chrono::milliseconds(2));
                let_all_go();
            });
        } else {
            let_all_go();
        }
    }

    void join() {
        if (late_.joinable()) {
            late_.join();
        }
        if (releaser_) {
            releaser_->join();
        }
    }

  private:
    void look_at(const RowLease& lease, Outcome& outcome) {
        const data::PackedRow& row = *lease.row();
        outcome.rows.push_back(row.index);
        outcome.num_empty_rows += row.empty();
        for (const data::Document& document : row.documents) {
            outcome.samples.push_back(document.id);
        }
        outcome.num_wrong_slots += lease.slot() != row.index % scenario_.num_slots;
        slots_.read(lease.slot(), row.index);
    }

    /// An error of a drafter's worker.
    void fail() {
        std::thread([this] {
            try {
                throw_fault(scenario_.fault);
            } catch (...) {
                first_error_.store(std::current_exception());
            }
        }).join();
    }

    std::size_t random_one() {
        return std::uniform_int_distribution<std::size_t>(0, held_.size() - 1)(random_);
    }

    void let_one_go(std::size_t i) {
        RowLease lease = std::move(held_[i]);
        held_.erase(held_.begin() + static_cast<std::ptrdiff_t>(i));
        random_pause(scenario_.max_pause_us, scenario_.seed + 3, i);
        if (releaser_) {
            releaser_->add(std::move(lease));
        } else {
            slots_.let_go(lease.slot());
            lease.release();
        }
    }

    void let_all_go() {
        while (!held_.empty()) {
            let_one_go(random_one());
        }
    }

    const Scenario& scenario_;
    Pipeline& pipeline_;
    FakeSlots& slots_;
    FirstError& first_error_;
    std::mt19937_64 random_;
    std::vector<RowLease> held_;  // in order of rows
    std::unique_ptr<Releaser> releaser_;
    std::thread late_;
};

}  // namespace

std::string to_string(const Scenario& s) {
    return fmt::format(
        "samples {} window {} slots {} replicas {} x {} threads {} row {} pause {} held {} "
        "elsewhere {} stop {} keep {} fault {} seed {}",
        s.num_samples,
        s.window,
        s.num_slots,
        s.num_replicas,
        s.capacity,
        s.num_threads,
        s.max_row_samples,
        s.max_pause_us,
        s.rows_held,
        s.release_elsewhere,
        s.stop_after.value_or(-1),
        s.keep_leases,
        error_text(s.fault),
        s.seed);
}

Outcome run(const Scenario& scenario) {
    const auto start = std::chrono::steady_clock::now();
    const Deadline deadline(10, to_string(scenario));
    Outcome outcome;
    FirstError first_error;
    FakeSource source(scenario.num_samples, scenario.fault);
    FakeEncoder encoder(scenario.usable, scenario.max_pause_us, scenario.seed, scenario.fault);
    FakePacker packer(scenario.window, scenario.max_row_samples, scenario.seed, scenario.fault);
    FakeSlots slots(scenario.num_slots);
    std::vector<std::unique_ptr<FakeReplica>> fakes;
    std::vector<Replica> replicas;
    for (int i = 0; i < std::max(scenario.num_replicas, 1); ++i) {
        fakes.push_back(std::make_unique<FakeReplica>(
            slots, first_error, scenario.max_pause_us, scenario.seed, scenario.fault));
        replicas.push_back({.start =
                                [fake = fakes.back().get()](
                                    const RowPtr& row, int slot, std::function<void()> done) {
                                    fake->start(row, slot, std::move(done));
                                },
                            .capacity = scenario.capacity});
    }
    std::unique_ptr<TargetStage> target;
    if (scenario.num_replicas == 0) {
        target = std::make_unique<FakeTarget>(*fakes.front());
    } else {
        target = std::make_unique<ReplicaDispatcher>(std::move(replicas), first_error);
    }
    {
        Pipeline pipeline({.num_slots = scenario.num_slots,
                           .window = scenario.window,
                           .num_threads = scenario.num_threads},
                          source,
                          encoder,
                          packer,
                          *target,
                          first_error);
        pipeline.start();
        Loop loop(scenario, pipeline, slots, first_error);
        loop.run(outcome);
        try {
            pipeline.stop();
        } catch (const std::exception& error) {
            outcome.stop_error = error.what();
        }
        loop.join();
        outcome.stats = pipeline.stats();
    }
    fakes.clear();  // joins: late `done` calls meet a pipeline that is gone
    outcome.num_wrong_slots += slots.num_conflicts();
    outcome.samples_read = source.num_read();
    outcome.seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    return outcome;
}

std::string check_complete(const Scenario& scenario, const Outcome& outcome) {
    std::vector<std::int64_t> rows(outcome.rows.size());
    std::iota(rows.begin(), rows.end(), 0);
    std::vector<std::int64_t> samples;
    for (std::int64_t i = 0; i < scenario.num_samples; ++i) {
        if (scenario.usable(i)) {
            samples.push_back(i);
        }
    }
    if (!outcome.next_error.empty() || !outcome.stop_error.empty()) {
        return fmt::format("error '{}', '{}'", outcome.next_error, outcome.stop_error);
    }
    if (outcome.rows != rows) {
        return "rows are not consecutive";
    }
    if (outcome.samples != samples) {
        return fmt::format("{} of {} samples arrived", outcome.samples.size(), samples.size());
    }
    if (outcome.num_wrong_slots != 0) {
        return fmt::format("{} rows in a wrong slot", outcome.num_wrong_slots);
    }
    const auto dropped = scenario.num_samples - std::ssize(samples);
    if (outcome.stats.samples_read != scenario.num_samples ||
        outcome.stats.samples_dropped != dropped ||
        outcome.stats.rows_delivered != std::ssize(rows)) {
        return fmt::format("statistics say {} samples, {} dropped, {} rows",
                           outcome.stats.samples_read,
                           outcome.stats.samples_dropped,
                           outcome.stats.rows_delivered);
    }
    return "";
}

OneCore::OneCore() {
    sched_getaffinity(0, sizeof before_, &before_);
    cpu_set_t one;
    CPU_ZERO(&one);
    for (std::size_t core = 0; core < CPU_SETSIZE; ++core) {
        if (CPU_ISSET(core, &before_)) {
            CPU_SET(core, &one);
            break;
        }
    }
    sched_setaffinity(0, sizeof one, &one);
}

OneCore::~OneCore() {
    sched_setaffinity(0, sizeof before_, &before_);
}

}  // namespace dflash::pipeline
