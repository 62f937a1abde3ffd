// SPDX-License-Identifier: Apache-2.0
// What GPUs and the process itself say about their load: figures for people, never needed by the
// run. What is not known is left empty; nothing here is an error.
#pragma once

#include <dflash/core/scope.hpp>
#include <dflash/gpu/device.hpp>
#include <dflash/gpu/nvml.hpp>

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace dflash::gpu {

/// Figures of one physical GPU, whoever uses it. Of a GPU that is cut into instances (MIG) those of
/// the whole, where the driver gives them.
struct GpuFigures {
    std::optional<double>
        use;  ///< share of the driver's last sampling period with a kernel running
    std::optional<std::int64_t> memory_used_bytes;
    std::optional<std::int64_t> memory_total_bytes;
    std::optional<double> power_w;
    std::optional<int> sm_clock_mhz;
    std::optional<int> temperature_c;
};

/// A process that has a context on a GPU.
struct GpuProcess {
    std::int64_t pid = 0;  ///< as the driver knows it: outside of a container's own numbering
    std::optional<std::int64_t> memory_bytes;
};

/// Of this process.
struct ProcessFigures {
    double cpu_s = 0;  ///< processor time of all its threads since it started
    std::int64_t resident_bytes = 0;
};

/// Reads GPUs through NVML. Any thread may call, and none of the calls touches a CUDA context or a
/// stream; a GPU that has fallen off the bus may make a call hang in the driver.
class GpuSensors {
  public:
    /// `nvml`: null where there is none, then nothing is known.
    explicit GpuSensors(std::shared_ptr<const NvmlFunctions> nvml = load_nvml());

    bool available() const { return nvml_ != nullptr; }

    /// By PCI bus id ("0000:1b:00.0"): CUDA ordinals are not NVML's indices.
    GpuFigures read(const std::string& pci_bus_id) const;

    /// The processes on a GPU, by rising id, each once; empty if nothing is known (see
    /// available()).
    std::vector<GpuProcess> processes(const std::string& pci_bus_id) const;

  private:
    NvmlDevice* find(const std::string& pci_bus_id) const;
    void add_processes(NvmlFunctions::Processes function,
                       NvmlDevice* device,
                       std::map<std::int64_t, GpuProcess>& found) const;

    std::shared_ptr<const NvmlFunctions> nvml_;
};

ProcessFigures read_process_figures();

/// Reads the GPUs of a list of devices again and again on a thread of its own, so that a driver
/// that hangs holds up nobody.
class SensorSampler : NonCopyable {
  public:
    SensorSampler(std::vector<std::string> pci_bus_ids,
                  GpuSensors sensors,
                  std::chrono::milliseconds interval);

    /// Ends the thread; one that hangs in the driver is left behind after a second.
    ~SensorSampler();

    /// The newest figures by position in the list; empty ones before the first reading, and for all
    /// GPUs once a reading has taken more than 20 intervals, since they are then no news.
    std::vector<GpuFigures> latest() const;

  private:
    struct State;
    std::shared_ptr<State> state_;  // shared with the thread, which may outlive this object
    std::thread thread_;
};

}  // namespace dflash::gpu
