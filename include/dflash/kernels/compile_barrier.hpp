// SPDX-License-Identifier: Apache-2.0
// One start for all workers of the process: the kernels of a run are compiled once, by one thread,
// loaded on every device, and then sealed. No step ever compiles or loads, and no two threads ever
// compile the same thing.
//
// The order of a run: require() for every role, prepare() (compile, load, warm up), whatever else
// allocates (communicators, buffers), seal(); then counters_after_seal() where a report is due.
#pragma once

#include <dflash/core/first_error.hpp>
#include <dflash/gpu/worker.hpp>
#include <dflash/kernels/kernel_builder.hpp>
#include <dflash/kernels/kernel_driver.hpp>
#include <dflash/kernels/launch.hpp>
#include <dflash/kernels/startup_report.hpp>

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace dflash::kernels {

/// A logical device that takes part. A run on the CPU needs no kernels, and goes through the same
/// barrier.
struct Participant {
    gpu::Device device;
    bool drafts = false;  ///< may be elected to compile
};

/// The kernels of a role on GPUs of one architecture. Called from any thread. What it throws is
/// the error of the build.
using KernelList = std::function<std::vector<KernelSpec>(const Architecture&)>;

/// How often something happened that must not happen in steady training.
struct CounterReading {
    std::string name;
    std::int64_t count = 0;

    bool operator==(const CounterReading&) const = default;
};

/// Process-wide in effect: a run makes one. All members may be called from any thread. Must live
/// longer than the workers. Every wait ends when FirstError is set.
class CompileBarrier : NonCopyable {
  public:
    /// `driver` may be null if no participant is a GPU.
    CompileBarrier(std::vector<Participant> participants,
                   const KernelBuilder& builder,
                   KernelDriver* driver,
                   FirstError& first_error);

    /// Adds kernels that a role of this run may need. Internal error once a participant has
    /// arrived, and after the seal.
    void require(std::string_view role, KernelList kernels);

    /// To be called once by every participant on its worker, all at the same time. The first
    /// drafter that arrives (or the first participant, if none drafts) is elected and builds the
    /// union of the kernels for the architectures of all devices; the others wait and get the same
    /// result or the same error. Then each loads all kernels on its device. Returns when all have.
    /// A KernelError of the build or of loading goes to FirstError; everybody throws the run's
    /// first error. `activity`, if given, is the worker's: it says "Waits" while others are at
    /// work.
    void arrive(const gpu::Device& device, Activity* activity = nullptr);

    /// arrive() on all workers, then `warm_up` on all of them at the same time, and waits for it
    /// all. Not from a worker. Throws the run's first error. The order makes a warm-up with
    /// collectives safe: no device loads a kernel while another is in one.
    void prepare(std::span<gpu::Worker* const> workers,
                 const std::function<void(gpu::Worker&)>& warm_up = {});

    /// Ends the start: from now on a request for kernels is an internal error, and the counters
    /// count from zero. Internal error unless all participants have arrived.
    void seal();

    bool sealed() const;

    /// What kernels for that device are built for: the argument of a KernelList.
    Architecture architecture(const gpu::Device& device) const;

    /// The kernel on that device, which has arrived. Never compiles or loads: a kernel that was not
    /// required is an internal error, before the seal and after it.
    LoadedKernel kernel(const KernelSpec& spec, const gpu::Device& device) const;

    /// Adds a counter for check_steady(), such as a memory allocator's calls of cudaMalloc. `read`
    /// gives a count that only grows; it is called from any thread, as long as the barrier lives,
    /// and must not call the barrier.
    void watch(std::string name, std::function<std::int64_t()> read);

    /// What the counters have counted since the seal: kernel loads, compilations, and what is
    /// watched. All of them must be 0 in steady training. Internal error before the seal.
    std::vector<CounterReading> counters_after_seal() const;

    /// Throws an internal error naming the counters that are not 0.
    void check_steady() const;

    /// What the start took; complete when all have arrived.
    StartupReport report() const;

  private:
    class Election;

    const Participant& participant(const gpu::Device& device) const;
    std::vector<KernelRequest> requests() const;
    void build_once(const Participant& me, Activity* activity);
    void load_all(const gpu::Device& device);
    void wait_for_all(Activity* activity);

    struct Counter {
        std::string name;
        std::function<std::int64_t()> read;
        std::int64_t at_seal = 0;
    };

    /// Kernels on one GPU, which several logical devices may share.
    struct LoadedDevice {
        std::mutex mutex;  // guards: done, and held while loading
        bool done = false;
        std::vector<LoadedKernel> kernels;
    };

    const std::vector<Participant> participants_;
    const KernelBuilder& builder_;
    KernelDriver* driver_;
    FirstError& first_error_;

    mutable std::mutex mutex_;  // guards: everything below but the insides of loaded_
    std::condition_variable changed_;
    std::vector<KernelList> lists_;
    std::set<int> arrived_;  // positions
    bool electing_ = false;  // somebody builds
    bool built_ = false;     // with kernels or with an error
    std::vector<BuiltKernel> built_kernels_;
    std::exception_ptr build_error_;
    std::map<int, LoadedDevice> loaded_;  // by ordinal; made in the constructor
    std::size_t num_loaded_ = 0;          // participants
    bool sealed_ = false;
    std::vector<Counter> counters_;
    StartupReport report_;
    FirstError::Subscription subscription_;
};

}  // namespace dflash::kernels
