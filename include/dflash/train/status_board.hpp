// SPDX-License-Identifier: Apache-2.0
// The status of a run, kept up to date by a thread of its own: it draws the live block every second
// and writes status.json, also while the training loop waits or hangs. It asks workers and pipeline
// for counters only, and never touches the queue of a device.
#pragma once

#include <dflash/core/scope.hpp>
#include <dflash/gpu/sensors.hpp>
#include <dflash/pipeline/pipeline.hpp>
#include <dflash/report/console.hpp>
#include <dflash/report/status.hpp>
#include <dflash/report/status_file.hpp>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace dflash::train {

/// Counters of one logical device, since its start.
struct DeviceSample {
    std::string name{};
    bool has_target = false;
    bool has_drafter = false;
    double busy_s = 0;                   ///< its worker ran tasks
    std::int64_t tasks = 0;              ///< queued or running now
    std::optional<double> row_idle_s{};  ///< its target had no row
};

/// Counters of all that works on a run.
struct RunSample {
    std::vector<DeviceSample> devices;
    pipeline::PipelineStats pipeline;
};

/// All members from any thread, but finished(), failed() and the destructor from the one that made
/// it. None throws for the sake of the terminal or the disk.
class StatusBoard : NonCopyable {
  public:
    struct Options {
        std::string folder;   ///< of the run; status.json goes there
        std::string version;  ///< of the program
        double every_s =
            10;  ///< between two writings of status.json, and what shares are means over
        std::chrono::milliseconds redraw_every{1000};  ///< the block
        std::function<bool()> stop_requested{};        ///< may be null
    };

    StatusBoard(report::Console& console, Options options);

    /// Takes the block from the screen.
    ~StatusBoard();

    /// Ends when it is destroyed.
    class Activity;

    /// The run is in that state until the activity ends; then in the one it was in before. They may
    /// be nested.
    [[nodiscard]] Activity enter(report::RunState state, std::string doing = {});

    /// Something goes on beside the training: "saving step 1000".
    [[nodiscard]] Activity beside(std::string what);

    /// Devices are looked at from here on, for as long as the activity lasts: `sample` is called on
    /// the board's thread, about once a second, and must not wait for anything but a lock that is
    /// held for moments. `pci_bus_ids`: of the devices, by position; empty for CPU devices.
    [[nodiscard]] Activity watch(std::function<RunSample()> sample,
                                 const std::vector<std::string>& pci_bus_ids);

    /// A step was finished; the time is filled in here.
    void step(report::StepStatus step);
    void held_out(const report::HeldOutStatus& result);
    void decoded(const report::DecodedStatus& result);
    void saved(std::int64_t step);

    /// The end of the run: the block goes, the last status.json is written. A failure that is
    /// reported on the console while the board is there is taken for one of the run.
    void finished(report::RunState state, int exit_code);
    void failed(const std::exception_ptr& error);

    /// All that is known now, with a sample taken by the caller's thread: for a report of who
    /// waits.
    report::RunStatus status();

  private:
    using Clock = std::chrono::steady_clock;

    struct Entered {
        std::int64_t id;
        report::RunState state;
        std::string doing;
    };

    struct TimedSample {
        Clock::time_point at;
        RunSample sample;
        double cpu_s;
    };

    void run();
    void leave(std::int64_t id);
    void take_sample();
    void update(double now_s);
    void update_devices();
    void publish(bool write_file);
    void end(report::RunState state, int exit_code);
    void stop_thread();

    report::Console& console_;
    const Options options_;
    report::StatusFile file_;

    std::mutex sampling_;  // held while the sample function runs; never taken with mutex_ held
    std::function<RunSample()> sample_;

    std::mutex mutex_;  // guards all below
    std::condition_variable wake_;
    report::RunStatus status_;
    std::vector<Entered> entered_;
    std::vector<std::pair<std::int64_t, std::string>> beside_;
    std::unique_ptr<gpu::SensorSampler> sensors_;
    std::int64_t watch_id_ = 0;
    std::int64_t last_id_ = 0;
    std::deque<TimedSample> samples_;  // of the last every_s, the oldest first
    bool changed_ = false;
    bool ended_ = false;
    std::thread thread_;
};

class StatusBoard::Activity {
  public:
    Activity() = default;

    Activity(Activity&& other) noexcept
        : board_(std::exchange(other.board_, nullptr)), id_(other.id_) {}

    Activity& operator=(Activity&& other) noexcept {
        if (this != &other) {
            end();
            board_ = std::exchange(other.board_, nullptr);
            id_ = other.id_;
        }
        return *this;
    }

    ~Activity() { end(); }

    void end() {
        if (board_ != nullptr) {
            std::exchange(board_, nullptr)->leave(id_);
        }
    }

  private:
    friend class StatusBoard;

    Activity(StatusBoard* board, std::int64_t id) : board_(board), id_(id) {}

    StatusBoard* board_ = nullptr;
    std::int64_t id_ = 0;
};

}  // namespace dflash::train
