// SPDX-License-Identifier: Apache-2.0
#include <dflash/gpu/sensors.hpp>

#include <algorithm>
#include <condition_variable>
#include <ctime>
#include <fstream>
#include <limits>
#include <pthread.h>
#include <unistd.h>
#include <utility>

namespace dflash::gpu {
namespace {

constexpr unsigned long long kNotKnown = std::numeric_limits<unsigned long long>::max();
constexpr std::size_t kMostProcesses = 4096;

}  // namespace

GpuSensors::GpuSensors(std::shared_ptr<const NvmlFunctions> nvml) : nvml_(std::move(nvml)) {}

NvmlDevice* GpuSensors::find(const std::string& pci_bus_id) const {
    NvmlDevice* device = nullptr;
    if (!nvml_ || nvml_->handle_by_pci_bus_id(pci_bus_id.c_str(), &device) != kNvmlSuccess) {
        return nullptr;
    }
    return device;
}

GpuFigures GpuSensors::read(const std::string& pci_bus_id) const {
    GpuFigures figures;
    NvmlDevice* const device = find(pci_bus_id);
    if (device == nullptr) {
        return figures;
    }
    NvmlUtilization utilization{};
    if (nvml_->utilization != nullptr && nvml_->utilization(device, &utilization) == kNvmlSuccess) {
        figures.use = static_cast<double>(utilization.gpu) / 100;
    }
    NvmlMemory memory{};
    if (nvml_->memory != nullptr && nvml_->memory(device, &memory) == kNvmlSuccess) {
        figures.memory_used_bytes = static_cast<std::int64_t>(memory.used);
        figures.memory_total_bytes = static_cast<std::int64_t>(memory.total);
    }
    unsigned number = 0;
    if (nvml_->power_mw != nullptr && nvml_->power_mw(device, &number) == kNvmlSuccess) {
        figures.power_w = static_cast<double>(number) / 1000;
    }
    if (nvml_->clock_mhz != nullptr &&
        nvml_->clock_mhz(device, kNvmlSmClock, &number) == kNvmlSuccess) {
        figures.sm_clock_mhz = static_cast<int>(number);
    }
    if (nvml_->temperature_c != nullptr &&
        nvml_->temperature_c(device, kNvmlCoreTemperature, &number) == kNvmlSuccess) {
        figures.temperature_c = static_cast<int>(number);
    }
    return figures;
}

std::vector<GpuProcess> GpuSensors::processes(const std::string& pci_bus_id) const {
    std::vector<GpuProcess> all;
    NvmlDevice* const device = find(pci_bus_id);
    if (device == nullptr) {
        return all;
    }
    // A process that computes and draws stands in both lists, with the same memory.
    std::map<std::int64_t, GpuProcess> found;
    add_processes(nvml_->compute_processes, device, found);
    add_processes(nvml_->graphics_processes, device, found);
    for (const auto& [pid, process] : found) {
        all.push_back(process);
    }
    return all;
}

void GpuSensors::add_processes(NvmlFunctions::Processes function,
                               NvmlDevice* device,
                               std::map<std::int64_t, GpuProcess>& found) const {
    if (function == nullptr) {
        return;
    }
    // The list may grow between asking for its length and for its entries.
    std::vector<NvmlProcess> list(16);
    auto count = static_cast<unsigned>(list.size());
    int status = function(device, &count, list.data());
    while (status == kNvmlInsufficientSize && list.size() < kMostProcesses) {
        list.resize(std::max<std::size_t>(2 * list.size(), count));
        count = static_cast<unsigned>(list.size());
        status = function(device, &count, list.data());
    }
    if (status != kNvmlSuccess) {
        return;
    }
    list.resize(std::min<std::size_t>(list.size(), count));
    for (const NvmlProcess& process : list) {
        GpuProcess& entry = found[process.pid];
        entry.pid = process.pid;
        if (process.used_bytes != kNotKnown) {
            entry.memory_bytes = std::max(entry.memory_bytes.value_or(0),
                                          static_cast<std::int64_t>(process.used_bytes));
        }
    }
}

ProcessFigures read_process_figures() {
    ProcessFigures figures;
    ::timespec time{};
    if (::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time) == 0) {
        figures.cpu_s = static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
    }
    std::ifstream file("/proc/self/statm");  // in pages: size, resident, ...
    std::int64_t size = 0;
    std::int64_t resident = 0;
    if (file >> size >> resident) {
        figures.resident_bytes = resident * ::sysconf(_SC_PAGESIZE);
    }
    return figures;
}

struct SensorSampler::State {
    using Clock = std::chrono::steady_clock;

    State(std::vector<std::string> ids, GpuSensors s, std::chrono::milliseconds i)
        : pci_bus_ids(std::move(ids)), sensors(std::move(s)), interval(i) {}

    void run() {
        pthread_setname_np(pthread_self(), "dflash-sensors");
        std::unique_lock lock(mutex);
        while (!stopping) {
            lock.unlock();
            // A GPU that is listed several times is asked once.
            std::map<std::string, GpuFigures> by_id;
            std::vector<GpuFigures> now;
            for (const std::string& id : pci_bus_ids) {
                const auto [entry, is_new] = by_id.try_emplace(id);
                if (is_new && !id.empty()) {
                    entry->second = sensors.read(id);
                }
                now.push_back(entry->second);
            }
            lock.lock();
            figures = std::move(now);
            read_at = Clock::now();
            wake.wait_for(lock, interval, [this] { return stopping; });
        }
        ended = true;
        wake.notify_all();
    }

    const std::vector<std::string> pci_bus_ids;
    const GpuSensors sensors;
    const std::chrono::milliseconds interval;
    std::mutex mutex;  // guards all below
    std::condition_variable wake;
    std::vector<GpuFigures> figures;
    Clock::time_point read_at;
    bool stopping = false;
    bool ended = false;
};

SensorSampler::SensorSampler(std::vector<std::string> pci_bus_ids,
                             GpuSensors sensors,
                             std::chrono::milliseconds interval)
    : state_(std::make_shared<State>(std::move(pci_bus_ids), std::move(sensors), interval)) {
    // Without a GPU or without NVML there is nothing to read.
    if (state_->sensors.available() && std::any_of(state_->pci_bus_ids.begin(),
                                                   state_->pci_bus_ids.end(),
                                                   [](const auto& id) { return !id.empty(); })) {
        thread_ = std::thread([state = state_] { state->run(); });
    }
}

SensorSampler::~SensorSampler() {
    if (!thread_.joinable()) {
        return;
    }
    std::unique_lock lock(state_->mutex);
    state_->stopping = true;
    state_->wake.notify_all();
    const bool ended =
        state_->wake.wait_for(lock, std::chrono::seconds(1), [this] { return state_->ended; });
    lock.unlock();
    if (ended) {
        thread_.join();
    } else {
        thread_.detach();
    }
}

std::vector<GpuFigures> SensorSampler::latest() const {
    constexpr int kOldAfterIntervals = 20;
    const std::lock_guard lock(state_->mutex);
    if (state_->figures.empty() ||
        State::Clock::now() - state_->read_at > kOldAfterIntervals * state_->interval) {
        return std::vector<GpuFigures>(state_->pci_bus_ids.size());
    }
    return state_->figures;
}

}  // namespace dflash::gpu
