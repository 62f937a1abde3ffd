// SPDX-License-Identifier: Apache-2.0
// The cache under several processes, killed writers, and disks that do not take files.
#include "captured_log.hpp"
#include "child_process.hpp"
#include "scratch_folder.hpp"
#include "tiny_kernel.hpp"

#include <dflash/kernels/kernel_builder.hpp>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <doctest/doctest.h>
#include <filesystem>
#include <fmt/format.h>
#include <random>
#include <sched.h>
#include <set>
#include <string>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <thread>
#include <unistd.h>
#include <vector>

namespace dflash::kernels {
namespace {

namespace fs = std::filesystem;

constexpr int kNumKernels = 3;
constexpr int kCannotMount = 77;
constexpr const char* kFolder = "DFLASH_TEST_FOLDER";

std::vector<KernelRequest> requests() {
    std::vector<KernelRequest> list;
    for (const KernelSpec& spec : tiny_kernels(kNumKernels)) {
        list.push_back({spec, kTestArchitecture});
    }
    return list;
}

// A build goes well whatever happens to the cache, with one warning if `warns`.
void build_in(const std::string& folder, bool warns) {
    const CapturedLog log;
    const KernelBuilder builder(tiny_sources(), {.folder = folder});
    const std::vector<BuiltKernel> kernels = builder.build(requests());
    CHECK(kernels.size() == kNumKernels);
    for (const BuiltKernel& kernel : kernels) {
        CHECK(kernel.binary.cubin.substr(0, 4) == "\177ELF");
    }
    CHECK(log.warnings().size() == (warns ? 1 : 0));
}

// What interrupted writers have left, or writers at work have not finished.
std::set<fs::path> leftovers(const std::string& folder) {
    std::set<fs::path> paths;
    for (const auto& entry : fs::directory_iterator(folder)) {
        if (entry.path().filename().string().find(".tmp-") != std::string::npos) {
            paths.insert(entry.path());
        }
    }
    return paths;
}

// A file system of its own for this process, of `size` bytes. False where that is not permitted.
bool mount_small_disk(const std::string& folder, const std::string& size) {
    return ::unshare(CLONE_NEWNS) == 0 &&
           ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
           ::mount("none", folder.c_str(), "tmpfs", 0, ("size=" + size).c_str()) == 0;
}

TEST_SUITE("kernels.cache_process") {
    TEST_CASE("child: builds the kernels and says how many it compiled" * doctest::skip()) {
        const std::string folder = child_input(kFolder);
        build_in(folder + "/cache", /*warns=*/false);
        const fs::path compiled = fs::path(folder) / "compiled";
        fs::create_directories(compiled);
        for (std::int64_t i = 0; i < Compiler::num_compilations(); ++i) {
            fs::create_directory(compiled / fmt::format("{}-{}", ::getpid(), i));
        }
    }

    TEST_CASE("processes: 16 on one cold folder compile each kernel once, and all get it") {
        const ScratchFolder folder;
        std::vector<ChildProcess> children;
        children.reserve(16);
        for (int i = 0; i < 16; ++i) {
            children.emplace_back("child: builds the kernels and says how many it compiled",
                                  Environment{{kFolder, folder.path()}});
        }
        for (ChildProcess& child : children) {
            CHECK(child.wait() == 0);
        }
        const auto compiled = std::distance(fs::directory_iterator(folder / "compiled"), {});
        CHECK(compiled == kNumKernels);
        const std::vector<CacheEntry> entries = KernelCache({.folder = folder / "cache"}).list();
        CHECK(entries.size() == kNumKernels);
        for (const CacheEntry& entry : entries) {
            CHECK(entry.fault.empty());
        }
    }

    TEST_CASE("child: writes kernels without end" * doctest::skip()) {
        const KernelCache cache({.folder = child_input(kFolder)});
        KernelBinary binary{.cubin = std::string(std::size_t{1} << 20, 'x'),
                            .resources = {},
                            .compiler = "a compiler"};
        for (std::int64_t i = 0;; ++i) {
            binary.cubin[0] = static_cast<char>('a' + i % 20);
            const KernelSpec spec = tiny_kernel(i % 2);
            cache.store({kernel_digest(tiny_sources(), spec, kTestArchitecture), binary.compiler},
                        spec,
                        kTestArchitecture,
                        binary);
        }
    }

    TEST_CASE("kill -9 during a write: no name ever stands for half a kernel") {
        const ScratchFolder folder;
        const CapturedLog log;
        std::mt19937 random(7);
        for (int round = 0; round < 16; ++round) {
            ChildProcess child("child: writes kernels without end",
                               Environment{{kFolder, folder.path()}});
            while (KernelCache({.folder = folder.path()}).list().size() < 2) {
                std::this_thread::sleep_for(std::chrono::milliseconds(1));
            }
            // At any moment, and right after a file was begun.
            std::this_thread::sleep_for(std::chrono::microseconds(random() % 20000));
            const std::set<fs::path> known = leftovers(folder.path());
            const auto begun = [&] {
                const std::set<fs::path> now = leftovers(folder.path());
                return !std::includes(known.begin(), known.end(), now.begin(), now.end());
            };
            while (round % 2 == 1 && !begun()) {
            }
            child.kill_now();
            CHECK(child.wait() == 1000 + SIGKILL);
            for (const CacheEntry& entry : KernelCache({.folder = folder.path()}).list()) {
                CHECK(entry.fault.empty());
            }
        }
        const std::set<fs::path> left = leftovers(folder.path());
        CHECK_FALSE(left.empty());  // or no write was interrupted
        for (const fs::path& path : left) {
            fs::last_write_time(path, fs::file_time_type::clock::now() - std::chrono::hours(2));
        }
        KernelCache({.folder = folder.path()}).trim({});
        CHECK(leftovers(folder.path()).empty());
        CHECK(log.warnings().empty());
    }

    TEST_CASE("child: holds a lock until it is killed" * doctest::skip()) {
        const std::string folder = child_input(kFolder);
        const auto lock = KernelCache({.folder = folder}).lock({std::string(64, '1'), {}}, 1);
        CHECK(lock != nullptr);
        fs::create_directory(folder + "/locked");
        std::this_thread::sleep_for(std::chrono::minutes(5));
    }

    TEST_CASE("kill -9 with a lock held: the lock ends with the process") {
        const ScratchFolder folder;
        const KernelCache cache({.folder = folder.path()});
        ChildProcess child("child: holds a lock until it is killed",
                           Environment{{kFolder, folder.path()}});
        while (!fs::exists(folder / "locked")) {
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
        }
        const CacheKey key{std::string(64, '1'), {}};
        CHECK(cache.lock(key, 0.03) == nullptr);
        child.kill_now();
        CHECK(child.wait() == 1000 + SIGKILL);
        CHECK(cache.lock(key, 5) != nullptr);
    }

    TEST_CASE("child: builds as nobody where only root may write" * doctest::skip()) {
        REQUIRE(::setuid(65534) == 0);
        REQUIRE(::getuid() != 0);
        build_in(child_input(kFolder), /*warns=*/true);
    }

    TEST_CASE("read-only folder: one warning, and the build goes on") {
        if (::getuid() != 0) {
            const ScratchFolder folder;
            ::chmod(folder.path().c_str(), 0555);
            build_in(folder.path(), /*warns=*/true);
            ::chmod(folder.path().c_str(), 0755);
            return;
        }
        // Root may write whatever the mode says, so the writer is somebody else.
        const ScratchFolder folder;
        ::chmod(folder.path().c_str(), 0555);
        ChildProcess child("child: builds as nobody where only root may write",
                           Environment{{kFolder, folder.path()}});
        CHECK(child.wait() == 0);
        CHECK(fs::is_empty(folder.path()));
    }

    TEST_CASE("child: builds while no file may grow" * doctest::skip()) {
        ::signal(SIGXFSZ, SIG_IGN);
        const rlimit limit{1000, 1000};
        REQUIRE(::setrlimit(RLIMIT_FSIZE, &limit) == 0);
        build_in(child_input(kFolder), /*warns=*/true);
    }

    TEST_CASE("writes that fail half-way: one warning, and nothing is left behind") {
        const ScratchFolder folder;
        ChildProcess child("child: builds while no file may grow",
                           Environment{{kFolder, folder.path()}});
        CHECK(child.wait() == 0);
        CHECK(KernelCache({.folder = folder.path()}).list().empty());
        for (const auto& entry : fs::directory_iterator(folder.path())) {
            CHECK(entry.path().filename().string() == ".lock");
        }
    }

    TEST_CASE("child: builds on a full disk and on a read-only one" * doctest::skip()) {
        const std::string folder = child_input(kFolder);
        if (!mount_small_disk(folder, "4k")) {
            std::_Exit(kCannotMount);
        }
        build_in(folder, /*warns=*/true);
        REQUIRE(::mount("none", folder.c_str(), "tmpfs", MS_REMOUNT | MS_RDONLY, nullptr) == 0);
        build_in(folder, /*warns=*/true);
    }

    TEST_CASE("full and read-only disks: one warning each, and the build goes on") {
        const ScratchFolder folder;
        ChildProcess child("child: builds on a full disk and on a read-only one",
                           Environment{{kFolder, folder.path()}});
        const int result = child.wait();
        if (result == kCannotMount) {
            MESSAGE("not run: this machine lets no test mount a disk");
        } else {
            CHECK(result == 0);
        }
    }
}

}  // namespace
}  // namespace dflash::kernels
