// SPDX-License-Identifier: Apache-2.0
// Correctness rests on two things only: names appear by rename, and contents are verified. Locks
// save work, modification times decide what trim() deletes; both may fail without harm.
#include "file_lock.hpp"
#include "kernel_file.hpp"

#include <dflash/core/check.hpp>
#include <dflash/core/log.hpp>
#include <dflash/core/sha256.hpp>
#include <dflash/io/atomic_file.hpp>
#include <dflash/io/storage_error.hpp>
#include <dflash/kernels/kernel_cache.hpp>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <fcntl.h>
#include <filesystem>
#include <fmt/format.h>
#include <sys/stat.h>
#include <system_error>
#include <unistd.h>

namespace dflash::kernels {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kLockName = ".lock";

// The whole file. Read, not mapped: a mapping would end the process if somebody cut the file.
std::string read_file(const std::string& path) {
    // O_NONBLOCK: a pipe under a kernel's name must not be waited for.
    const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (descriptor < 0) {
        throw io::storage_error("cannot open", path, errno);
    }
    std::string bytes;
    constexpr std::size_t kPiece = std::size_t{1} << 18;
    for (;;) {
        const std::size_t old_size = bytes.size();
        bytes.resize(old_size + kPiece);
        const ::ssize_t count = ::read(descriptor, bytes.data() + old_size, kPiece);
        const int error = errno;
        bytes.resize(old_size + static_cast<std::size_t>(std::max<::ssize_t>(count, 0)));
        if (count == 0 || (count < 0 && error != EINTR)) {
            ::close(descriptor);
            if (count < 0) {
                throw io::storage_error("cannot read", path, error);
            }
            return bytes;
        }
    }
}

bool is_kernel_file(const fs::path& path) {
    return path.extension() == kKernelFileSuffix && !path.filename().string().starts_with('.');
}

/// ".NAME.kernel.tmp-PID-N", as io::AtomicFile calls what it has not finished.
bool is_leftover(const fs::path& path) {
    const std::string name = path.filename().string();
    return name.starts_with('.') &&
           name.find(std::string(kKernelFileSuffix) + ".tmp-") != std::string::npos;
}

struct Found {
    std::string path;
    Bytes size = 0;
    fs::file_time_type time;
};

// Files of a folder that `wanted` accepts, by path; nothing if there is no such folder.
template <class Wanted>
std::vector<Found> files_of(const std::string& folder, Wanted wanted) {
    std::vector<Found> found;
    std::error_code error;
    for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
        std::error_code gone;  // another process may delete it at any moment
        const bool regular = it->is_regular_file(gone);
        const auto size = regular && !gone ? it->file_size(gone) : 0;
        const auto time = gone ? fs::file_time_type() : it->last_write_time(gone);
        if (regular && !gone && wanted(it->path())) {
            found.push_back({it->path().string(), static_cast<Bytes>(size), time});
        }
    }
    std::sort(
        found.begin(), found.end(), [](const Found& a, const Found& b) { return a.path < b.path; });
    return found;
}

}  // namespace

std::string default_cache_root() {
    // The XDG base directory specification: a relative path is to be ignored.
    const char* cache = std::getenv("XDG_CACHE_HOME");
    if (cache != nullptr && *cache == '/') {
        return (fs::path(cache) / "dflash").string();
    }
    const char* home = std::getenv("HOME");
    return home != nullptr && *home != '\0' ? (fs::path(home) / ".cache" / "dflash").string() : "";
}

std::vector<std::string> default_pack_folders() {
    std::error_code error;
    const fs::path program = fs::read_symlink("/proc/self/exe", error);
    if (error) {
        return {};
    }
    const fs::path folder = program.parent_path();
    return {(folder / "kernels").string(),
            (folder.parent_path() / "share" / "dflash" / "kernels").string()};
}

CacheOptions cache_options_in(const std::string& root) {
    return {.folder = root.empty() ? root : (fs::path(root) / "kernels").string(),
            .packs = default_pack_folders()};
}

std::string kernel_digest(const SourceSet& sources,
                          const KernelSpec& spec,
                          const Architecture& architecture) {
    // Text of the sources as it is, comments included: telling apart what matters would need a
    // preprocessor, and a kernel compiled once too often costs a second.
    Sha256 hash;
    hash.add_field("dflash kernel 1");
    hash.add_field(DFLASH_VERSION);
    hash.add_field(spec.entry);
    for (const std::string& option : Compiler::options(spec, architecture)) {
        hash.add_field(option);
    }
    hash.add_field("sources");
    for (const std::string& name : sources.reachable(spec.source)) {
        hash.add_field(name);
        hash.add_field(*sources.find(name));
    }
    return hash.finish();
}

std::optional<CachedKernel> KernelCache::load(const std::string& path,
                                              const CacheKey& key,
                                              bool from_pack) const {
    std::error_code gone;
    if (!fs::exists(path, gone)) {
        return std::nullopt;
    }
    std::string fault;
    try {
        KernelFile file = decode_kernel_file(read_file(path));
        if (file.digest == key.digest &&
            (from_pack || !key.compiler || file.binary.compiler == *key.compiler)) {
            if (!from_pack) {
                // Used now: what trim() deletes last. It fails in a folder of somebody else's.
                static_cast<void>(::utimensat(AT_FDCWD, path.c_str(), nullptr, 0));
            }
            return CachedKernel{std::move(file.binary), path, from_pack};
        }
        fault = "it holds another kernel than its name says";
    } catch (const Error& error) {
        fault = error.parts().what;
    }
    if (fs::exists(path, gone)) {  // or else another process has just deleted it
        warn_of_file(path, from_pack ? "not be used" : "be replaced", fault);
    }
    return std::nullopt;
}

std::optional<CachedKernel> KernelCache::find(const CacheKey& key) const {
    const CacheKey any{.digest = key.digest, .compiler = std::nullopt};
    const auto search = [&](const std::string& folder,
                            bool from_pack) -> std::optional<CachedKernel> {
        const std::string prefix = kernel_file_name(any);
        for (const Found& file : files_of(folder, [&](const fs::path& path) {
                 return is_kernel_file(path) && path.filename().string().starts_with(prefix);
             })) {
            if (auto kernel = load(file.path, key, from_pack)) {
                return kernel;
            }
        }
        return std::nullopt;
    };
    // With a compiler the name is known; without, any file of this digest will do.
    std::optional<CachedKernel> found;
    if (!options_.folder.empty()) {
        found = key.compiler ? load((fs::path(options_.folder) / kernel_file_name(key)).string(),
                                    key,
                                    /*from_pack=*/false)
                             : search(options_.folder, /*from_pack=*/false);
    }
    for (const std::string& pack : options_.packs) {
        if (!found) {
            found = search(pack, /*from_pack=*/true);
        }
    }
    return found;
}

bool KernelCache::store(const CacheKey& key,
                        const KernelSpec& spec,
                        const Architecture& architecture,
                        const KernelBinary& binary) const {
    DFLASH_CHECK(key.compiler.has_value(), "a kernel is stored without its compiler");
    if (options_.folder.empty()) {
        warn_of_store("there is no cache folder");
        return false;
    }
    try {
        io::create_folders(options_.folder);
        io::write_file_atomically((fs::path(options_.folder) / kernel_file_name(key)).string(),
                                  encode_kernel_file({.kernel = spec.id(),
                                                      .architecture = architecture.name(),
                                                      .digest = key.digest,
                                                      .binary = binary}));
        return true;
    } catch (const Error& error) {
        // Full, read-only, no permission, something else in its place: the kernel is in memory, and
        // the run goes on with it.
        warn_of_store(error.what());
        return false;
    }
}

void KernelCache::warn_of_file(const std::string& path,
                               const std::string& fate,
                               const std::string& why) const {
    bool is_first = false;
    {
        const std::lock_guard lock(mutex_);
        is_first = warned_files_.insert(path).second;
    }
    if (is_first) {
        log_warning("kernel cache: {} is damaged or foreign and will {}: {}", path, fate, why);
    }
}

void KernelCache::warn_of_store(const std::string& why) const {
    if (!warned_of_store_.exchange(true)) {
        log_warning("kernel cache: kernels are not kept for the next run: {}", why);
    }
}

std::shared_ptr<void> KernelCache::lock(const CacheKey& key, double timeout_s) const {
    std::error_code error;
    if (options_.folder.empty() || (fs::create_directories(options_.folder, error), error)) {
        return nullptr;
    }
    // 15 digits fit into a positive file offset. Two kernels with one number only wait in vain.
    constexpr std::size_t kDigits = 15;
    std::int64_t number = 0;
    std::from_chars(key.digest.data(),
                    key.digest.data() + std::min(kDigits, key.digest.size()),
                    number,
                    /*base=*/16);
    return FileLock::acquire((fs::path(options_.folder) / kLockName).string(), number, timeout_s);
}

std::pair<int, Bytes> KernelCache::trim(const std::vector<std::string>& in_use) const {
    // Younger ones may belong to a writer that is at work.
    constexpr std::chrono::hours kLeftoverAge(1);
    for (const Found& file : files_of(options_.folder, is_leftover)) {
        std::error_code error;
        if (fs::file_time_type::clock::now() - file.time > kLeftoverAge) {
            fs::remove(file.path, error);
        }
    }
    std::vector<Found> kernels = files_of(options_.folder, is_kernel_file);
    Bytes total = 0;
    for (const Found& file : kernels) {
        total += file.size;
    }
    std::stable_sort(kernels.begin(), kernels.end(), [](const Found& a, const Found& b) {
        return a.time < b.time;
    });
    std::pair<int, Bytes> deleted{0, 0};
    for (const Found& file : kernels) {
        if (total <= options_.max_bytes) {
            break;
        }
        const std::string name = fs::path(file.path).filename().string();
        const bool used = std::any_of(in_use.begin(), in_use.end(), [&](const std::string& digest) {
            return name.starts_with(kernel_file_name({digest, std::nullopt}));
        });
        std::error_code error;
        if (!used && fs::remove(file.path, error)) {
            total -= file.size;
            deleted.first += 1;
            deleted.second += file.size;
        }
    }
    if (deleted.first > 0) {
        log_info("kernel cache: {} kernels used longest ago were deleted", deleted.first);
    }
    return deleted;
}

std::pair<int, Bytes> KernelCache::clear() const {
    std::pair<int, Bytes> deleted{0, 0};
    for (const Found& file : files_of(options_.folder, [](const fs::path& path) {
             return is_kernel_file(path) || is_leftover(path);
         })) {
        if (::unlink(file.path.c_str()) != 0 && errno != ENOENT) {
            throw io::storage_error("cannot delete", file.path, errno);
        }
        deleted.first += is_kernel_file(file.path) ? 1 : 0;
        deleted.second += file.size;
    }
    return deleted;
}

std::vector<CacheEntry> KernelCache::list() const {
    std::vector<std::string> folders = options_.packs;
    folders.push_back(options_.folder);
    std::vector<CacheEntry> entries;
    for (const std::string& folder : folders) {
        for (const Found& found : files_of(folder, is_kernel_file)) {
            CacheEntry entry{.path = found.path, .size = found.size};
            try {
                const KernelFile file = decode_kernel_file(read_file(found.path));
                entry.kernel = file.kernel;
                entry.architecture = file.architecture;
                entry.digest = file.digest;
                entry.compiler = file.binary.compiler;
                entry.resources = file.binary.resources;
            } catch (const Error& error) {
                entry.fault = error.parts().what;
            }
            entries.push_back(std::move(entry));
        }
    }
    return entries;
}

}  // namespace dflash::kernels
