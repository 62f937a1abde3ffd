// SPDX-License-Identifier: Apache-2.0
// Compiled kernels on disk, one file each, and packs of them that come with the program.
//
// A file is called DIGEST-COMPILER.kernel: DIGEST stands for the text of all sources that the
// kernel reaches, its instance, the options, the architecture and the version of the program;
// COMPILER for NVRTC's version and build. Files appear by rename, complete; loading verifies a
// checksum over all of a file. Nothing that is wrong with the folder ends a run: what cannot be
// read is compiled again, and what cannot be written is not cached, with one warning.
//
// Any number of threads and processes may use a folder at the same time.
#pragma once

#include <dflash/core/types.hpp>
#include <dflash/kernels/compiler.hpp>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace dflash::kernels {

/// $XDG_CACHE_HOME/dflash, or ~/.cache/dflash; empty if neither variable is set. Kernels lie in the
/// folder "kernels" in it.
std::string default_cache_root();

/// Folders where packs are looked for: "kernels" beside the program, and share/dflash/kernels
/// beside its folder.
std::vector<std::string> default_pack_folders();

/// DIGEST of a kernel, 64 hexadecimal digits.
std::string kernel_digest(const SourceSet& sources,
                          const KernelSpec& spec,
                          const Architecture& architecture);

/// What is looked for.
struct CacheKey {
    std::string digest;

    /// Compiler::identity(). Without one, a kernel of any compiler is taken.
    std::optional<std::string> compiler;
};

/// A kernel that was found.
struct CachedKernel {
    KernelBinary binary;
    std::string path;
    bool from_pack = false;
};

/// A kernel file as `dflash kernels` lists it.
struct CacheEntry {
    std::string path;
    Bytes size = 0;
    std::string fault{};  ///< why it cannot be used; the fields below are then empty
    std::string kernel{};
    std::string architecture{};
    std::string digest{};
    std::string compiler{};
    KernelResources resources{};
};

struct CacheOptions {
    std::string folder;                ///< made when it is first written to; empty: no cache
    std::vector<std::string> packs{};  ///< folders of the same form, only read
    Bytes max_bytes = Bytes{512} << 20;
};

/// The folder "kernels" in `root` (empty: no cache), and the packs that come with the program.
CacheOptions cache_options_in(const std::string& root);

/// All members may be called from any thread.
class KernelCache {
  public:
    explicit KernelCache(CacheOptions options) : options_(std::move(options)) {}

    const CacheOptions& options() const { return options_; }

    /// Looks into the folder, then into the packs. What comes with the program is taken from any
    /// compiler: it was tested with the program. Files that are damaged or are something else than
    /// their name says are left out, with one warning each. Never throws for the files' sake.
    std::optional<CachedKernel> find(const CacheKey& key) const;

    /// Writes a kernel; key.compiler must be set. False, with a warning the first time, if that
    /// fails.
    bool store(const CacheKey& key,
               const KernelSpec& spec,
               const Architecture& architecture,
               const KernelBinary& binary) const;

    /// Keeps other processes from compiling the same kernel as long as the result lives, after
    /// waiting at most `timeout_s` for one that does. Only saves work: where locks do not work,
    /// null comes back at once, and two processes may compile the same. The lock ends with the
    /// process, however that ends.
    std::shared_ptr<void> lock(const CacheKey& key, double timeout_s) const;

    /// Deletes the files used longest ago until the folder holds at most options().max_bytes, and
    /// what interrupted writers have left for more than an hour. Files with a digest in `in_use`
    /// stay. Returns the number and size of the kernels deleted.
    std::pair<int, Bytes> trim(const std::vector<std::string>& in_use) const;

    /// Deletes all kernels of the folder and what interrupted writers left; packs and foreign files
    /// stay. Throws Error{Storage} if one cannot be deleted.
    std::pair<int, Bytes> clear() const;

    /// Kernel files of the folder and of the packs, by path.
    std::vector<CacheEntry> list() const;

  private:
    std::optional<CachedKernel> load(const std::string& path,
                                     const CacheKey& key,
                                     bool from_pack) const;
    void warn_of_file(const std::string& path,
                      const std::string& fate,
                      const std::string& why) const;
    void warn_of_store(const std::string& why) const;

    CacheOptions options_;
    mutable std::mutex mutex_;  // guards: warned_files_
    mutable std::set<std::string> warned_files_;
    mutable std::atomic<bool> warned_of_store_ = false;
};

}  // namespace dflash::kernels
