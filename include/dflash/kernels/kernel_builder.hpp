// SPDX-License-Identifier: Apache-2.0
// Kernels from the cache, from packs, or compiled: the only way in which this program comes by a
// kernel.
#pragma once

#include <dflash/kernels/compiler.hpp>
#include <dflash/kernels/kernel_cache.hpp>

#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace dflash::kernels {

struct KernelRequest {
    KernelSpec spec;
    Architecture architecture;

    bool operator==(const KernelRequest&) const = default;
};

enum class KernelOrigin { Compiled, Cache, Pack };

/// "compiled", "cache", "pack".
std::string_view to_string(KernelOrigin origin);

struct BuiltKernel {
    KernelRequest request;
    KernelBinary binary;
    std::string digest;
    KernelOrigin origin = KernelOrigin::Compiled;
    std::string source;   ///< path of the file, or name of the thread that compiled it
    double seconds = 0;   ///< that this build took for it, waiting for other processes included
    bool is_kept = true;  ///< it lies in the cache or in a pack
};

struct BuilderOptions {
    /// Threads that compile; 0: one for each processor that the process may use.
    int num_threads = 0;

    /// What is neither in the cache nor in a pack is an error.
    bool forbid_compilation = false;

    /// Longest wait of a build for other processes that compile the same kernels.
    double lock_timeout_s = 60;

    /// The defaults, with DFLASH_NO_JIT=1 of the environment.
    static BuilderOptions from_environment();
};

/// Any thread; but several builds at a time of the same kernels compile them several times, which
/// is what the CompileBarrier is for.
class KernelBuilder {
  public:
    KernelBuilder(SourceSet sources,
                  CacheOptions cache,
                  BuilderOptions options = BuilderOptions::from_environment(),
                  std::vector<std::string> compiler_libraries = Compiler::default_libraries())
        : compiler_(std::move(sources), std::move(compiler_libraries)),
          cache_(std::move(cache)),
          options_(options) {}

    const Compiler& compiler() const { return compiler_; }

    const KernelCache& cache() const { return cache_; }

    /// Looks all kernels up and compiles those that are missing, in a pool: one kernel, one thread.
    /// What was compiled is stored, and the cache is kept within its size. The results are in the
    /// order of the requests, of which no two may be equal.
    ///
    /// The first kernel that fails ends the build with its KernelError, once compilations that have
    /// begun are done; the same happens, with an internal error, when `cancelled` (asked before
    /// each kernel, from any thread) says so.
    std::vector<BuiltKernel> build(
        const std::vector<KernelRequest>& requests,
        const std::function<bool()>& cancelled = [] { return false; }) const;

  private:
    bool look_up(BuiltKernel& kernel) const;
    class Patience;
    void compile(BuiltKernel& kernel, Patience& patience) const;
    void compile_all(const std::vector<BuiltKernel*>& missing,
                     const std::function<bool()>& cancelled) const;
    void may_compile(const std::vector<BuiltKernel*>& missing) const;

    Compiler compiler_;
    KernelCache cache_;
    BuilderOptions options_;
};

}  // namespace dflash::kernels
