// SPDX-License-Identifier: Apache-2.0
// One mutex guards the state and one condition variable tells of every change of it. Nothing long
// happens under the mutex: who builds or loads holds the election or its device instead, so that
// everybody else can be woken at any moment by FirstError.
#include <dflash/core/check.hpp>
#include <dflash/kernels/compile_barrier.hpp>

#include <algorithm>
#include <chrono>
#include <fmt/format.h>
#include <memory>
#include <utility>

namespace dflash::kernels {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) {
    return std::chrono::duration<double>(Clock::now() - begin).count();
}

/// The wait of a worker that may be given, on its board while this lives.
std::optional<Activity::Scope> note_wait(Activity* activity, const char* what) {
    if (activity == nullptr) {
        return std::nullopt;
    }
    return std::optional<Activity::Scope>(
        std::in_place, *activity, what, Activity::kNoNumber, Activity::Kind::Waits);
}

}  // namespace

/// The lock of the barrier: while one is held, nobody else builds. Unlike a mutex it lets its
/// waiters go when the run fails, and when there is nothing left to build.
class CompileBarrier::Election : NonCopyable {
  public:
    /// Returns when the caller is elected, or the build is done. Throws the run's first error.
    Election(CompileBarrier& barrier, bool may_build, Activity* activity) : barrier_(barrier) {
        const auto waiting = note_wait(activity, "wait for the build of kernels");
        std::unique_lock lock(barrier_.mutex_);
#ifndef DFLASH_MUTATION_NO_BARRIER_LOCK  // a test builds without it and must fail
        barrier_.changed_.wait(lock, [&] {
            return barrier_.built_ || barrier_.first_error_.failed() ||
                   (may_build && !barrier_.electing_);
        });
#else
        static_cast<void>(may_build);
#endif
        // Built with an error counts as built: everybody gets that error, and nobody tries again.
        if (!barrier_.built_) {
            barrier_.first_error_.rethrow_if_failed();
            elected_ = true;
            barrier_.electing_ = true;
        }
    }

    ~Election() {
        if (elected_) {
            {
                const std::lock_guard lock(barrier_.mutex_);
                barrier_.electing_ = false;
            }
            barrier_.changed_.notify_all();
        }
    }

    bool elected() const {
        return elected_;
    }

  private:
    CompileBarrier& barrier_;
    bool elected_ = false;
};

CompileBarrier::CompileBarrier(std::vector<Participant> participants,
                               const KernelBuilder& builder,
                               KernelDriver* driver,
                               FirstError& first_error)
    : participants_(std::move(participants)),
      builder_(builder),
      driver_(driver),
      first_error_(first_error),
      subscription_(first_error.on_error([this] {
          // With the lock held nobody is between looking at FirstError and falling asleep.
          { const std::lock_guard lock(mutex_); }
          changed_.notify_all();
      })) {
    std::set<int> positions;
    for (const Participant& participant : participants_) {
        DFLASH_CHECK(positions.insert(participant.device.position).second,
                     "{} takes part in the compile barrier twice",
                     participant.device.name);
        if (participant.device.is_cuda()) {
            DFLASH_CHECK(driver_ != nullptr, "a compile barrier for GPUs has no driver");
            loaded_.try_emplace(participant.device.ordinal);
        }
    }
    // Of the whole process: a compilation that went around the barrier counts as well.
    counters_.push_back({"compilations", Compiler::num_compilations});
    if (driver_ != nullptr) {
        counters_.push_back({"kernel loads", [this] { return driver_->num_loads(); }});
    }
    report_.num_devices = static_cast<int>(loaded_.size());
}

void CompileBarrier::require(std::string_view role, KernelList kernels) {
    const std::lock_guard lock(mutex_);
    DFLASH_CHECK(!sealed_, "kernels for the {} are asked for after the seal", role);
    DFLASH_CHECK(
        arrived_.empty(), "kernels for the {} are asked for while the barrier is at work", role);
    lists_.push_back(std::move(kernels));
}

Architecture CompileBarrier::architecture(const gpu::Device& device) const {
    DFLASH_CHECK(device.is_cuda() && driver_ != nullptr, "{} has no kernels", device.name);
    return driver_->architecture(device);
}

const Participant& CompileBarrier::participant(const gpu::Device& device) const {
    const auto found =
        std::find_if(participants_.begin(), participants_.end(), [&](const Participant& other) {
            return other.device.position == device.position;
        });
    DFLASH_CHECK(
        found != participants_.end(), "{} does not take part in the compile barrier", device.name);
    return *found;
}

void CompileBarrier::arrive(const gpu::Device& device, Activity* activity) {
    const Participant& me = participant(device);
    {
        const std::lock_guard lock(mutex_);
        DFLASH_CHECK(!sealed_, "{} arrives after the seal", device.name);
        DFLASH_CHECK(arrived_.insert(device.position).second, "{} arrives twice", device.name);
    }
    try {
        build_once(me, activity);
        if (device.is_cuda()) {
            load_all(device);
        }
    } catch (...) {
        // If something else failed first, the reason is there: a build is cancelled by it, for one.
        first_error_.store(std::current_exception());
        first_error_.rethrow_if_failed();
    }
    wait_for_all(activity);
}

// Usually all GPUs are of one kind, and this is one architecture. Asking a device for it makes no
// context and no current device, so that the elected worker may ask for those of the others, too.
std::vector<KernelRequest> CompileBarrier::requests() const {
    std::vector<Architecture> architectures;
    for (const Participant& participant : participants_) {
        if (participant.device.is_cuda()) {
            const Architecture own = driver_->architecture(participant.device);
            if (std::find(architectures.begin(), architectures.end(), own) == architectures.end()) {
                architectures.push_back(own);
            }
        }
    }
    std::vector<KernelRequest> requests;
    for (const Architecture& target : architectures) {
        std::vector<std::vector<KernelSpec>> specs;
        for (const KernelList& list : lists_) {
            specs.push_back(list(target));
        }
        for (KernelSpec& spec : merge_kernels(specs)) {
            requests.push_back({std::move(spec), target});
        }
    }
    return requests;
}

void CompileBarrier::build_once(const Participant& me, Activity* activity) {
    // Without drafters (evaluation alone) the first of all is elected.
    const bool any_drafts = std::any_of(participants_.begin(),
                                        participants_.end(),
                                        [](const Participant& other) { return other.drafts; });
    const Election election(*this, me.drafts || !any_drafts, activity);
    if (election.elected()) {
        const Clock::time_point begin = Clock::now();
        std::vector<BuiltKernel> kernels;
        std::exception_ptr error;
        // Without the mutex: it takes seconds, and the others must be able to leave.
        try {
            kernels = builder_.build(requests(), [this] { return first_error_.failed(); });
        } catch (...) {
            error = std::current_exception();
        }
        const std::lock_guard lock(mutex_);
        built_kernels_ = std::move(kernels);
        build_error_ = error;
        built_ = true;
        report_.elected = me.device.name;
        report_.build_s = seconds_since(begin);
        for (const BuiltKernel& kernel : built_kernels_) {
            report_.kernels.push_back(
                {.kernel = kernel.request.spec.id(),
                 .architecture = kernel.request.architecture.name(),
                 .origin = kernel.origin,
                 .source = kernel.source,
                 .seconds = kernel.seconds,
                 .resources = kernel.binary.resources,
                 .dynamic_shared_bytes = kernel.request.spec.dynamic_shared_bytes});
        }
    }
    std::exception_ptr error;
    {
        const std::lock_guard lock(mutex_);
        error = build_error_;
    }
    if (error) {
        std::rethrow_exception(error);
    }
}

void CompileBarrier::load_all(const gpu::Device& device) {
    LoadedDevice& loaded = loaded_.at(device.ordinal);
    // Held while loading: another logical device on this GPU has to wait for its kernels anyhow.
    const std::lock_guard lock(loaded.mutex);
    if (loaded.done) {
        return;
    }
    const Clock::time_point begin = Clock::now();
    const Architecture own = driver_->architecture(device);
    // Not written any more since built_ was set: reading needs no lock.
    for (const BuiltKernel& kernel : built_kernels_) {
        if (kernel.request.architecture == own) {
            loaded.kernels.emplace_back(
                kernel.request.spec, driver_->load(kernel, device), device.ordinal);
        }
    }
    loaded.done = true;
    const std::lock_guard report_lock(mutex_);
    report_.load_s = std::max(report_.load_s, seconds_since(begin));
}

// Loading a module waits for kernels that run on that GPU; a collective waits for its peers. Who
// began to warm up while another still loads could wait for it for ever.
void CompileBarrier::wait_for_all(Activity* activity) {
    const auto waiting = note_wait(activity, "wait for the kernels of others");
    std::unique_lock lock(mutex_);
    num_loaded_ += 1;
    changed_.notify_all();
    changed_.wait(lock,
                  [this] { return num_loaded_ == participants_.size() || first_error_.failed(); });
    if (num_loaded_ != participants_.size()) {
        lock.unlock();
        first_error_.rethrow_if_failed();
    }
}

void CompileBarrier::prepare(std::span<gpu::Worker* const> workers,
                             const std::function<void(gpu::Worker&)>& warm_up) {
    // Shared with the workers, which may still be in a task when an error makes this return; a
    // worker drops the tasks that it has not begun.
    struct Progress {
        std::mutex mutex;  // guards: num_done
        std::condition_variable changed;
        std::size_t num_done = 0;
    };

    // Fewer would wait for ever for those who are not asked to come.
    DFLASH_CHECK(workers.size() == participants_.size(),
                 "{} workers for {} participants of the compile barrier",
                 workers.size(),
                 participants_.size());
    const auto progress = std::make_shared<Progress>();
    const auto wake = [progress] {
        { const std::lock_guard lock(progress->mutex); }
        progress->changed.notify_all();
    };
    const FirstError::Subscription subscription = first_error_.on_error(wake);
    for (gpu::Worker* const worker : workers) {
        DFLASH_CHECK(
            !worker->is_current_thread(), "{} would wait for itself", worker->device().name);
        worker->post({"load kernels"}, [this, worker, warm_up, progress] {
            arrive(worker->device(), &worker->activity());
            const Clock::time_point begin = Clock::now();
            if (warm_up) {
                warm_up(*worker);
            }
            {
                const std::lock_guard lock(mutex_);
                report_.warm_up_s = std::max(report_.warm_up_s, seconds_since(begin));
            }
            {
                const std::lock_guard lock(progress->mutex);
                progress->num_done += 1;
            }
            progress->changed.notify_all();
        });
    }
    {
        std::unique_lock lock(progress->mutex);
        progress->changed.wait(
            lock, [&] { return progress->num_done == workers.size() || first_error_.failed(); });
    }
    first_error_.rethrow_if_failed();
}

void CompileBarrier::seal() {
    const std::lock_guard lock(mutex_);
    DFLASH_CHECK(!sealed_, "the compile barrier is sealed twice");
    DFLASH_CHECK(num_loaded_ == participants_.size(),
                 "the compile barrier is sealed when {} of {} participants have arrived",
                 num_loaded_,
                 participants_.size());
    for (Counter& counter : counters_) {
        counter.at_seal = counter.read();
    }
    sealed_ = true;
}

bool CompileBarrier::sealed() const {
    const std::lock_guard lock(mutex_);
    return sealed_;
}

LoadedKernel CompileBarrier::kernel(const KernelSpec& spec, const gpu::Device& device) const {
    const std::lock_guard lock(mutex_);
    const auto loaded = loaded_.find(device.ordinal);
    DFLASH_CHECK(device.is_cuda() && loaded != loaded_.end() && num_loaded_ == participants_.size(),
                 "{} is asked for on {}, which has no kernels",
                 spec.id(),
                 device.name);
    // A run has a dozen kernels or two, and looks each up once: no index.
    for (const LoadedKernel& kernel : loaded->second.kernels) {
        if (kernel.spec() == spec) {
            return kernel;
        }
    }
    DFLASH_CHECK(false,
                 "{} was not required before the compile barrier was {}",
                 spec.id(),
                 sealed_ ? "sealed" : "passed");
}

void CompileBarrier::watch(std::string name, std::function<std::int64_t()> read) {
    const std::lock_guard lock(mutex_);
    const std::int64_t now = read();
    counters_.push_back({std::move(name), std::move(read), now});
}

std::vector<CounterReading> CompileBarrier::counters_after_seal() const {
    const std::lock_guard lock(mutex_);
    DFLASH_CHECK(sealed_, "counters are asked for before the seal");
    std::vector<CounterReading> readings;
    for (const Counter& counter : counters_) {
        readings.push_back({counter.name, counter.read() - counter.at_seal});
    }
    return readings;
}

void CompileBarrier::check_steady() const {
    std::string counted;
    for (const CounterReading& reading : counters_after_seal()) {
        if (reading.count != 0) {
            counted +=
                fmt::format("{}{} {}", counted.empty() ? "" : ", ", reading.count, reading.name);
        }
    }
    DFLASH_CHECK(counted.empty(), "after the seal there were {}", counted);
}

StartupReport CompileBarrier::report() const {
    const std::lock_guard lock(mutex_);
    return report_;
}

}  // namespace dflash::kernels
