// SPDX-License-Identifier: Apache-2.0
// Stages without data, models or GPUs. A sample's only token is its index; the "features" of a row
// are its index, written into the slot without any lock, so that ThreadSanitizer sees whether the
// pipeline orders the target's write and the loop's read.
#pragma once

#include <dflash/core/first_error.hpp>
#include <dflash/pipeline/stages.hpp>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

namespace dflash::pipeline {

/// Where and when a fake fails.
struct Fault {
    enum class At { Nowhere, Source, Encode, Pack, TargetStart, TargetForward, Loop };

    At at = At::Nowhere;
    std::int64_t step = 0;  ///< index of the sample or row

    bool hits(At where, std::int64_t index) const { return at == where && step == index; }
};

/// What the failing stage throws; `error_text` is its what().
[[noreturn]] void throw_fault(const Fault& fault);
std::string error_text(const Fault& fault);

/// Sleeps up to `max_us`, differently for each (seed, key); 0 does not sleep, and yields at random.
void random_pause(int max_us, std::uint64_t seed, std::uint64_t key);

class FakeSource final : public SampleSource {
  public:
    FakeSource(std::int64_t num_samples, Fault fault) : num_samples_(num_samples), fault_(fault) {}

    data::SampleRef next() override;

    std::int64_t num_read() const { return next_; }

  private:
    std::int64_t num_samples_;
    Fault fault_;
    std::int64_t next_ = 0;
};

class FakeEncoder final : public Encoder {
  public:
    FakeEncoder(std::function<bool(std::int64_t)> usable,
                int max_pause_us,
                std::uint64_t seed,
                Fault fault)
        : usable_(std::move(usable)), max_pause_us_(max_pause_us), seed_(seed), fault_(fault) {}

    data::Sample encode(const data::SampleRef& ref) override;

  private:
    std::function<bool(std::int64_t)> usable_;
    int max_pause_us_;
    std::uint64_t seed_;
    Fault fault_;
};

/// Rows of random numbers of samples; what a window dropped comes back with its first row.
class FakePacker final : public RowPacker {
  public:
    FakePacker(std::int64_t window, int max_row_samples, std::uint64_t seed, Fault fault)
        : window_(window), max_row_samples_(max_row_samples), random_(seed), fault_(fault) {}

    std::vector<data::PackedRow> push(data::Sample sample) override;

  private:
    std::vector<data::PackedRow> close_window();

    std::int64_t window_;
    int max_row_samples_;
    std::mt19937_64 random_;
    Fault fault_;
    std::vector<data::Sample> samples_;
    std::int64_t next_row_ = 0;
};

/// The slots, and who holds them.
class FakeSlots {
  public:
    explicit FakeSlots(int num_slots)
        : features_(static_cast<std::size_t>(num_slots), -1),
          holders_(static_cast<std::size_t>(num_slots)) {
        for (auto& holder : holders_) {
            holder = -1;
        }
    }

    /// The target writes the features of a row. Counts a conflict if another row holds the slot.
    void write(int slot, std::int64_t row);

    /// The loop reads the features of a row, and lets the slot go.
    void read(int slot, std::int64_t row);
    void let_go(int slot);

    int num_conflicts() const { return num_conflicts_; }

  private:
    std::vector<std::int64_t> features_;  // unprotected on purpose
    std::vector<std::atomic<std::int64_t>> holders_;
    std::atomic<int> num_conflicts_ = 0;
};

/// A target on a thread of its own.
class FakeReplica {
  public:
    FakeReplica(FakeSlots& slots,
                FirstError& first_error,
                int max_pause_us,
                std::uint64_t seed,
                Fault fault);
    ~FakeReplica();
    FakeReplica(const FakeReplica&) = delete;
    FakeReplica& operator=(const FakeReplica&) = delete;

    void start(const RowPtr& row, int slot, std::function<void()> done);

  private:
    void run();
    void forward(const RowPtr& row, int slot, const std::function<void()>& done);

    struct Job {
        RowPtr row;
        int slot;
        std::function<void()> done;
    };

    FakeSlots& slots_;
    FirstError& first_error_;
    int max_pause_us_;
    std::uint64_t seed_;
    Fault fault_;
    std::mutex mutex_;  // guards: jobs_, stopping_
    std::condition_variable wake_;
    std::deque<Job> jobs_;
    bool stopping_ = false;
    std::thread thread_;
};

/// One replica without a dispatcher.
class FakeTarget final : public TargetStage {
  public:
    explicit FakeTarget(FakeReplica& replica) : replica_(replica) {}

    void start(RowPtr row, int slot, std::function<void()> done) override {
        replica_.start(row, slot, std::move(done));
    }

  private:
    FakeReplica& replica_;
};

}  // namespace dflash::pipeline
