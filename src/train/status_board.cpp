// SPDX-License-Identifier: Apache-2.0
#include <dflash/core/log.hpp>
#include <dflash/report/failure_report.hpp>
#include <dflash/report/status_block.hpp>
#include <dflash/train/status_board.hpp>

#include <algorithm>
#include <pthread.h>
#include <unistd.h>
#include <utility>

namespace dflash::train {
namespace {

using report::DeviceStatus;
using report::RunState;

/// Waits below that are the grain of time in which things follow each other.
constexpr double kWorthTelling = 0.01;

double wall_time_s() {
    return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch())
        .count();
}

/// Growth of a counter of seconds as a share of the time that passed.
double share(double before, double now, double seconds) {
    return seconds > 0 ? std::clamp((now - before) / seconds, 0.0, 1.0) : 0;
}

std::string_view role_of(const DeviceSample& device) {
    return device.has_target && device.has_drafter ? "both"
           : device.has_target                     ? "target"
                                                   : "drafter";
}

/// What the devices waited for between two samples.
void add_waits(const RunSample& before,
               const RunSample& now,
               double seconds,
               std::vector<DeviceStatus>& devices) {
    const double slots =
        share(before.pipeline.target_waited_s, now.pipeline.target_waited_s, seconds);
    const double features =
        share(before.pipeline.step_waited_s, now.pipeline.step_waited_s, seconds);
    double idle_sum = 0;
    int targets = 0;
    for (std::size_t i = 0; i < now.devices.size(); ++i) {
        if (now.devices[i].row_idle_s) {
            idle_sum += share(*before.devices[i].row_idle_s, *now.devices[i].row_idle_s, seconds);
            ++targets;
        }
    }
    for (std::size_t i = 0; i < now.devices.size(); ++i) {
        const DeviceSample& device = now.devices[i];
        DeviceStatus& status = devices[i];
        if (device.row_idle_s) {
            status.waited = share(*before.devices[i].row_idle_s, *device.row_idle_s, seconds);
            // Of the time without a row, most is for want of slots, or of packed rows.
            status.waits_for = 2 * slots * targets >= idle_sum ? "slots" : "rows";
        }
        // The loop may wait for a row while the drafter still works on former ones.
        const double starved = std::min(features, 1 - status.busy);
        if (device.has_drafter && (!device.row_idle_s || starved > status.waited)) {
            status.waited = starved;
            status.waits_for = "target";
        }
        if (status.waited < kWorthTelling) {
            status.waits_for.clear();
        }
    }
}

}  // namespace

StatusBoard::StatusBoard(report::Console& console, Options options)
    : console_(console), options_(std::move(options)), file_(options_.folder + "/status.json") {
    status_.folder = options_.folder;
    status_.version = options_.version;
    status_.host = report::host_name();
    status_.pid = ::getpid();
    status_.process_start_ticks = report::process_start_ticks(status_.pid).value_or(0);
    status_.started_s = wall_time_s();
    status_.every_s = options_.every_s;
    // Where a run that hangs is ended from outside, nobody comes here to tell.
    console_.set_failure_listener([this](const std::exception_ptr& error) { failed(error); });
    thread_ = std::thread([this] {
        try {
            run();
        } catch (const std::exception& error) {
            log_warning("the status of the run is no longer shown: {}", error.what());
        }
    });
}

StatusBoard::~StatusBoard() {
    console_.set_failure_listener(nullptr);
    stop_thread();
}

/// After that nothing draws any more.
void StatusBoard::stop_thread() {
    {
        const std::lock_guard lock(mutex_);
        ended_ = true;
        wake_.notify_all();
    }
    if (thread_.joinable()) {
        thread_.join();
    }
    console_.clear_block();
}

StatusBoard::Activity StatusBoard::enter(RunState state, std::string doing) {
    const std::lock_guard lock(mutex_);
    entered_.push_back({++last_id_, state, std::move(doing)});
    samples_.clear();  // what was waited for belongs to the state
    changed_ = true;
    wake_.notify_all();
    return {this, last_id_};
}

StatusBoard::Activity StatusBoard::beside(std::string what) {
    const std::lock_guard lock(mutex_);
    beside_.emplace_back(++last_id_, std::move(what));
    changed_ = true;
    wake_.notify_all();
    return {this, last_id_};
}

StatusBoard::Activity StatusBoard::watch(std::function<RunSample()> sample,
                                         const std::vector<std::string>& pci_bus_ids) {
    const bool any_gpu = std::any_of(
        pci_bus_ids.begin(), pci_bus_ids.end(), [](const auto& id) { return !id.empty(); });
    auto sensors = any_gpu ? std::make_unique<gpu::SensorSampler>(
                                 pci_bus_ids, gpu::GpuSensors(), options_.redraw_every)
                           : nullptr;
    {
        const std::lock_guard sampling(sampling_);
        sample_ = std::move(sample);
    }
    const std::lock_guard lock(mutex_);
    sensors_ = std::move(sensors);
    samples_.clear();
    watch_id_ = ++last_id_;
    return {this, watch_id_};
}

void StatusBoard::leave(std::int64_t id) {
    std::unique_ptr<gpu::SensorSampler> sensors;  // its end waits for its thread
    std::unique_lock lock(mutex_);
    if (id == watch_id_) {
        sensors = std::move(sensors_);
        lock.unlock();
        const std::lock_guard sampling(sampling_);
        sample_ = nullptr;
        return;
    }
    std::erase_if(entered_, [id](const Entered& entered) { return entered.id == id; });
    std::erase_if(beside_, [id](const auto& activity) { return activity.first == id; });
    samples_.clear();
    changed_ = true;
    wake_.notify_all();
}

void StatusBoard::step(report::StepStatus step) {
    step.at_s = wall_time_s();
    const std::lock_guard lock(mutex_);
    changed_ = changed_ || !status_.step;  // the first one is shown at once
    status_.step = step;
    if (changed_) {
        wake_.notify_all();
    }
}

void StatusBoard::held_out(const report::HeldOutStatus& result) {
    const std::lock_guard lock(mutex_);
    status_.held_out = result;
}

void StatusBoard::decoded(const report::DecodedStatus& result) {
    const std::lock_guard lock(mutex_);
    status_.decoded = result;
}

void StatusBoard::saved(std::int64_t step) {
    const std::lock_guard lock(mutex_);
    status_.saved = {.step = step, .at_s = wall_time_s()};
}

void StatusBoard::finished(RunState state, int exit_code) {
    end(state, exit_code);
}

void StatusBoard::failed(const std::exception_ptr& error) {
    report::Failure failure = report::describe_failure(error);
    const int code = exit_code(failure.kind);
    {
        const std::lock_guard lock(mutex_);
        status_.failure = std::move(failure);
    }
    end(RunState::Failed, code);
}

void StatusBoard::end(RunState state, int exit_code) {
    {
        const std::lock_guard lock(mutex_);
        update(wall_time_s());
        ended_ = true;
        status_.state = state;
        status_.doing.clear();
        status_.exit_code = exit_code;
        file_.write(status_);
    }
    stop_thread();
    file_.finish();
}

report::RunStatus StatusBoard::status() {
    take_sample();
    const std::lock_guard lock(mutex_);
    update(wall_time_s());
    return status_;
}

void StatusBoard::take_sample() {
    std::optional<RunSample> sample;
    {
        const std::lock_guard sampling(sampling_);
        if (sample_) {
            sample = sample_();
        }
    }
    if (!sample) {
        return;
    }
    const TimedSample now{Clock::now(), std::move(*sample), gpu::read_process_figures().cpu_s};
    const std::lock_guard lock(mutex_);
    if (!samples_.empty() && samples_.back().sample.devices.size() != now.sample.devices.size()) {
        samples_.clear();
    }
    samples_.push_back(now);
    const auto every = std::chrono::duration<double>(options_.every_s);
    while (samples_.size() > 2 && now.at - samples_[1].at >= every) {
        samples_.pop_front();
    }
}

/// Requires mutex_.
void StatusBoard::update(double now_s) {
    if (ended_) {
        return;
    }
    status_.written_s = now_s;
    const report::ConsoleWarnings warnings = console_.warnings();
    status_.warnings = warnings.count;
    status_.last_warning = warnings.last;
    status_.process_bytes = gpu::read_process_figures().resident_bytes;
    status_.state = entered_.empty() ? RunState::Starting : entered_.back().state;
    status_.doing = entered_.empty() ? std::string() : entered_.back().doing;
    if (status_.state == RunState::Training && options_.stop_requested &&
        options_.stop_requested()) {
        status_.state = RunState::Stopping;
        status_.doing = "finishing the step";
    }
    status_.background.clear();
    for (const auto& [id, what] : beside_) {
        status_.background += (status_.background.empty() ? "" : ", ") + what;
    }
    update_devices();
}

void StatusBoard::update_devices() {
    if (samples_.empty()) {
        return;
    }
    const TimedSample& first = samples_.front();
    const TimedSample& last = samples_.back();
    const double seconds = std::chrono::duration<double>(last.at - first.at).count();
    if (seconds > 0) {
        status_.process_cpu = std::max((last.cpu_s - first.cpu_s) / seconds, 0.0);
    }
    std::vector<DeviceStatus> devices;
    const std::vector<gpu::GpuFigures> figures =
        sensors_ ? sensors_->latest() : std::vector<gpu::GpuFigures>();
    for (std::size_t i = 0; i < last.sample.devices.size(); ++i) {
        const DeviceSample& sample = last.sample.devices[i];
        DeviceStatus device;
        device.name = sample.name;
        device.role = role_of(sample);
        if (seconds > 0) {
            device.busy = share(first.sample.devices[i].busy_s, sample.busy_s, seconds);
        } else if (i < status_.devices.size()) {
            device.busy = status_.devices[i].busy;  // until there is something to compare with
        }
        device.tasks = sample.tasks;
        if (i < figures.size()) {
            device.use = figures[i].use;
            device.memory_used_bytes = figures[i].memory_used_bytes;
            device.memory_total_bytes = figures[i].memory_total_bytes;
            device.power_w = figures[i].power_w;
            device.sm_clock_mhz = figures[i].sm_clock_mhz;
            device.temperature_c = figures[i].temperature_c;
        }
        devices.push_back(std::move(device));
    }
    if (status_.state == RunState::Training && status_.step && seconds > 0) {
        add_waits(first.sample, last.sample, seconds, devices);
    }
    status_.devices = std::move(devices);
}

void StatusBoard::run() {
    pthread_setname_np(pthread_self(), "dflash-board");
    std::optional<Clock::time_point> written_at;
    const auto every = std::chrono::duration<double>(options_.every_s);
    for (;;) {
        take_sample();
        report::RunStatus status;
        bool write = false;
        {
            const std::lock_guard lock(mutex_);
            if (ended_) {
                return;
            }
            const double now_s = wall_time_s();
            update(now_s);
            write = std::exchange(changed_, false) || !written_at ||
                    Clock::now() - *written_at >= every;
            status = status_;
            if (write) {
                written_at = Clock::now();
                file_.write(status_);
            }
        }
        if (const auto space = console_.block_space()) {
            console_.show_block(report::block_lines(status, *space, wall_time_s()));
        }
        std::unique_lock lock(mutex_);
        wake_.wait_for(lock, options_.redraw_every, [this] { return ended_ || changed_; });
        if (ended_) {
            return;
        }
    }
}

}  // namespace dflash::train
