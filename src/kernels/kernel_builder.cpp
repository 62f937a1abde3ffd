// SPDX-License-Identifier: Apache-2.0
// Look-ups take a fraction of a millisecond each and happen in the caller's thread; compilations
// take 0.1 to 2 s each on one processor and run in a pool. NVRTC's own work is 92 % parallel
// between threads (measured with 13.0).
#include <dflash/core/activity.hpp>
#include <dflash/core/check.hpp>
#include <dflash/core/first_error.hpp>
#include <dflash/core/log.hpp>
#include <dflash/core/text.hpp>
#include <dflash/kernels/kernel_builder.hpp>
#include <dflash/kernels/kernel_error.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <pthread.h>
#include <sched.h>
#include <thread>
#include <unistd.h>

namespace dflash::kernels {
namespace {

class StopWatch {
  public:
    double seconds() const {
        return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count();
    }

  private:
    std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

/// Processors of the whole process. The thread that builds is a worker, pinned to the few next to
/// its GPU, and threads inherit that.
class ProcessorSet {
  public:
    ProcessorSet() {
        CPU_ZERO(&set_);
        known_ = ::sched_getaffinity(::getpid(), sizeof(set_), &set_) == 0;
    }

    int count() const {
        return known_ ? CPU_COUNT(&set_) : static_cast<int>(std::thread::hardware_concurrency());
    }

    void give_to_current_thread() const {
        if (known_) {
            static_cast<void>(::pthread_setaffinity_np(::pthread_self(), sizeof(set_), &set_));
        }
    }

  private:
    cpu_set_t set_;
    bool known_ = false;
};

std::string name_of_current_thread() {
    std::array<char, 16> name{};
    ::pthread_getname_np(::pthread_self(), name.data(), name.size());
    return name.data();
}

std::string describe_places(const KernelCache& cache) {
    std::vector<std::string> places = cache.options().packs;
    places.insert(places.begin(),
                  cache.options().folder.empty() ? "(no cache folder)" : cache.options().folder);
    return fmt::format("{}", fmt::join(places, " nor "));
}

}  // namespace

std::string_view to_string(KernelOrigin origin) {
    switch (origin) {
        case KernelOrigin::Compiled:
            return "compiled";
        case KernelOrigin::Cache:
            return "cache";
        case KernelOrigin::Pack:
            return "pack";
    }
    return "unknown";
}

BuilderOptions BuilderOptions::from_environment() {
    BuilderOptions options;
    const char* value = std::getenv("DFLASH_NO_JIT");
    options.forbid_compilation = value != nullptr && std::string_view(value) == "1";
    return options;
}

bool KernelBuilder::look_up(BuiltKernel& kernel) const {
    auto found = cache_.find({kernel.digest, compiler_.identity()});
    if (!found) {
        return false;
    }
    // An allowance that is gone since the file was written is not part of its name.
    check_resources(
        kernel.request.spec, kernel.request.architecture, found->binary.resources, found->path);
    kernel.binary = std::move(found->binary);
    kernel.origin = found->from_pack ? KernelOrigin::Pack : KernelOrigin::Cache;
    kernel.source = std::move(found->path);
    return true;
}

/// Waits for other processes, of all kernels of one build together.
class KernelBuilder::Patience {
  public:
    explicit Patience(double seconds) : seconds_(seconds) {}

    /// The lock of a kernel; null without a folder or locks, or when the time is over.
    std::shared_ptr<void> lock(const KernelCache& cache, const CacheKey& key) {
        constexpr double kQuiet_s = 2;
        const StopWatch wait;
        std::shared_ptr<void> lock = cache.lock(key, std::min(kQuiet_s, left()));
        if (!lock && wait.seconds() >= kQuiet_s) {
            if (!told_.exchange(true)) {
                log_info("kernels   waiting for another process that compiles them too, {} at most",
                         format_seconds(left()));
            }
            lock = cache.lock(key, left());
        }
        return lock;
    }

  private:
    double left() const { return std::max(seconds_ - since_.seconds(), 0.0); }

    double seconds_;
    StopWatch since_;
    std::atomic<bool> told_ = false;
};

void KernelBuilder::compile(BuiltKernel& kernel, Patience& patience) const {
    const StopWatch watch;
    const CacheKey key{kernel.digest, compiler_.identity()};
    const std::shared_ptr<void> lock = patience.lock(cache_, key);
    // With the lock, another process may just have stored it. Without (no folder, no locks, or
    // somebody takes too long) this one compiles whatever the others do.
    if (!lock || !look_up(kernel)) {
        kernel.binary = compiler_.compile(kernel.request.spec, kernel.request.architecture);
        kernel.origin = KernelOrigin::Compiled;
        kernel.source = name_of_current_thread();
        kernel.is_kept =
            cache_.store(key, kernel.request.spec, kernel.request.architecture, kernel.binary);
    }
    kernel.seconds = watch.seconds();
}

void KernelBuilder::compile_all(const std::vector<BuiltKernel*>& missing,
                                const std::function<bool()>& cancelled) const {
    FirstError first_error;
    std::atomic<std::size_t> next = 0;
    const ProcessorSet processors;
    Patience patience(options_.lock_timeout_s);
    // Each thread takes the next kernel, in the order of the requests, until one of them failed.
    const auto work = [&](std::size_t thread) {
        ::pthread_setname_np(::pthread_self(), fmt::format("dflash-nvrtc{}", thread).c_str());
        processors.give_to_current_thread();
        try {
            for (std::size_t i = next++; i < missing.size(); i = next++) {
                if (first_error.failed()) {
                    return;
                }
                DFLASH_CHECK(!cancelled(), "the build of kernels was cancelled");
                compile(*missing[i], patience);
                note_progress();
            }
        } catch (...) {
            first_error.store(std::current_exception());
        }
    };
    const int most = options_.num_threads > 0 ? options_.num_threads : processors.count();
    const std::size_t num_threads =
        std::min(missing.size(), static_cast<std::size_t>(std::max(most, 1)));
    {  // joins
        std::vector<std::jthread> threads;
        for (std::size_t thread = 0; thread < num_threads; ++thread) {
            threads.emplace_back(work, thread);
        }
    }
    first_error.rethrow_if_failed();
}

void KernelBuilder::may_compile(const std::vector<BuiltKernel*>& missing) const {
    const KernelRequest& first = missing.front()->request;
    const std::string kernels = fmt::format("{} kernels are missing, first {} for {}",
                                            missing.size(),
                                            first.spec.id(),
                                            first.architecture.name());
    if (options_.forbid_compilation) {
        throw KernelError(
            KernelFault::Forbidden,
            {.what = "DFLASH_NO_JIT=1 forbids to compile, and " + kernels,
             .where = describe_places(cache_),
             .cause = {},
             .hint = "Unset DFLASH_NO_JIT, or put a pack made by dflash kernels --compile beside "
                     "the program"});
    }
    // One error for all that is missing, not one of the pool's for the kernel it came to first.
    compiler_.require(fmt::format("{}: not in {}", kernels, describe_places(cache_)));
}

std::vector<BuiltKernel> KernelBuilder::build(const std::vector<KernelRequest>& requests,
                                              const std::function<bool()>& cancelled) const {
    std::vector<BuiltKernel> kernels;
    kernels.reserve(requests.size());
    for (const KernelRequest& request : requests) {
        kernels.push_back(
            {.request = request,
             .binary = {},
             .digest = kernel_digest(compiler_.sources(), request.spec, request.architecture),
             .source = {}});
    }
    std::vector<BuiltKernel*> missing;
    for (BuiltKernel& kernel : kernels) {
        const StopWatch watch;
        if (!look_up(kernel)) {
            missing.push_back(&kernel);
        }
        kernel.seconds = watch.seconds();
    }
    if (missing.empty()) {
        return kernels;
    }
    may_compile(missing);
    compile_all(missing, cancelled);
    // Only where something was stored can the folder have outgrown its size.
    std::vector<std::string> in_use;
    in_use.reserve(kernels.size());
    for (const BuiltKernel& kernel : kernels) {
        in_use.push_back(kernel.digest);
    }
    cache_.trim(in_use);
    return kernels;
}

}  // namespace dflash::kernels
