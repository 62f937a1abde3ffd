// SPDX-License-Identifier: Apache-2.0
#include "captured_log.hpp"
#include "scratch_folder.hpp"
#include "tiny_kernel.hpp"

#include <dflash/core/error.hpp>
#include <dflash/io/atomic_file.hpp>
#include <dflash/kernels/kernel_cache.hpp>

#include <chrono>
#include <cstdlib>
#include <doctest/doctest.h>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace dflash::kernels {
namespace {

namespace fs = std::filesystem;

KernelBinary binary_of(const std::string& cubin) {
    return {.cubin = cubin,
            .resources = {.registers = 168,
                          .stack_bytes = 8,
                          .spill_store_bytes = 4,
                          .spill_load_bytes = 12,
                          .static_shared_bytes = 2048},
            .compiler = "NVRTC 13.0 0123456789abcdef",
            .compile_s = 0.5};
}

CacheKey key_of(std::int64_t value) {
    return {kernel_digest(tiny_sources(), tiny_kernel(value), kTestArchitecture),
            "NVRTC 13.0 0123456789abcdef"};
}

bool store(const KernelCache& cache, std::int64_t value, const std::string& cubin) {
    return cache.store(key_of(value), tiny_kernel(value), kTestArchitecture, binary_of(cubin));
}

std::string read(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
}

void write(const std::string& path, const std::string& bytes) {
    std::ofstream(path, std::ios::binary) << bytes;
}

TEST_SUITE("kernels.kernel_cache") {
    TEST_CASE("digest: depends on all that decides the machine code, and on nothing else") {
        const KernelSpec spec = tiny_kernel(1);
        const std::string digest = kernel_digest(tiny_sources(), spec, kTestArchitecture);
        std::set<std::string> digests = {digest};
        const auto differs = [&](const SourceSet& sources,
                                 const KernelSpec& other,
                                 const Architecture& architecture) {
            return digests.insert(kernel_digest(sources, other, architecture)).second;
        };
        CHECK(differs(tiny_sources(), spec, Architecture::parse("sm_90")));
        CHECK(differs(tiny_sources(), tiny_kernel(2), kTestArchitecture));
        KernelSpec other = spec;
        other.threads = 64;
        CHECK(differs(tiny_sources(), other, kTestArchitecture));
        other = spec;
        other.dynamic_shared_bytes = 1024;
        CHECK(differs(tiny_sources(), other, kTestArchitecture));
        other = spec;
        other.min_blocks_per_sm = 2;
        CHECK(differs(tiny_sources(), other, kTestArchitecture));
        other = spec;
        other.entry = "tiny_2";
        CHECK(differs(tiny_sources(), other, kTestArchitecture));
        SourceSet sources = tiny_sources();
        sources.set("tiny_value.cuh", *sources.find("tiny_value.cuh") + "\n");
        CHECK(differs(sources, spec, kTestArchitecture));

        sources = tiny_sources();
        sources.set("not_reached.cuh", "int x;");
        CHECK(kernel_digest(sources, spec, kTestArchitecture) == digest);
        other = spec;
        other.allowed_spills = {{.architecture = "sm_80", .max_bytes = 8, .reason = "a test"}};
        CHECK(kernel_digest(tiny_sources(), other, kTestArchitecture) == digest);
    }

    TEST_CASE("store and find: the same kernel comes back, with its resources") {
        const ScratchFolder folder;
        const CapturedLog log;
        const KernelCache cache({.folder = folder / "deep/er"});
        CHECK_FALSE(cache.find(key_of(1)).has_value());
        std::string cubin("\177ELF\0\n\n binary", 14);
        REQUIRE(store(cache, 1, cubin));
        const auto found = cache.find(key_of(1));
        REQUIRE(found.has_value());
        CHECK(found->binary.cubin == cubin);
        CHECK(found->binary.resources == binary_of(cubin).resources);
        CHECK(found->binary.compiler == "NVRTC 13.0 0123456789abcdef");
        CHECK(found->binary.compile_s == doctest::Approx(0.5));
        CHECK_FALSE(found->from_pack);
        CHECK(fs::path(found->path).parent_path().string() == folder / "deep/er");
        CHECK_FALSE(cache.find(key_of(2)).has_value());
        CHECK(log.warnings().empty());
    }

    TEST_CASE("find: a kernel of another compiler is not taken, unless there is no compiler") {
        const ScratchFolder folder;
        const KernelCache cache({.folder = folder.path()});
        REQUIRE(store(cache, 1, "code"));
        CacheKey key = key_of(1);
        key.compiler = "NVRTC 12.8 fedcba9876543210";
        CHECK_FALSE(cache.find(key).has_value());
        key.compiler.reset();
        CHECK(cache.find(key).has_value());
    }

    TEST_CASE("find: packs serve any compiler, after the folder, and are not written") {
        const ScratchFolder folder;
        const CapturedLog log;
        REQUIRE(store(KernelCache({.folder = folder / "pack"}), 1, "from the pack"));
        const KernelCache cache(
            {.folder = folder / "own", .packs = {folder / "none", folder / "pack"}});
        CacheKey key = key_of(1);
        key.compiler = "NVRTC 14.2 1111111111111111";
        auto found = cache.find(key);
        REQUIRE(found.has_value());
        CHECK(found->from_pack);
        CHECK(found->binary.cubin == "from the pack");
        CHECK_FALSE(fs::exists(folder / "own"));
        key.compiler.reset();
        CHECK(cache.find(key)->from_pack);

        REQUIRE(store(cache, 1, "own"));
        found = cache.find(key_of(1));
        CHECK(found->binary.cubin == "own");
        CHECK_FALSE(found->from_pack);

        const std::string pack_file = KernelCache({.folder = folder / "pack"}).list().at(0).path;
        write(pack_file, "damaged");
        cache.clear();
        CHECK_FALSE(cache.find(key_of(1)).has_value());
        REQUIRE(log.warnings().size() == 1);
        CHECK(log.warnings()[0].find("will not be used") != std::string::npos);
        CHECK(read(pack_file) == "damaged");
    }

    TEST_CASE("find: every truncation and every flipped bit is noticed, warned of and replaced") {
        const ScratchFolder folder;
        const KernelCache cache({.folder = folder.path()});
        REQUIRE(store(cache, 1, "some machine code"));
        const std::string path = cache.list().at(0).path;
        const std::string good = read(path);
        std::vector<std::string> damaged;
        for (std::size_t size = 0; size < good.size(); ++size) {
            damaged.push_back(good.substr(0, size));
        }
        for (std::size_t i = 0; i < good.size(); ++i) {
            damaged.push_back(good);
            damaged.back()[i] = static_cast<char>(good[i] ^ (1 << (i % 8)));
        }
        damaged.push_back(good + "x");
        for (const std::string& bytes : damaged) {
            CAPTURE(bytes);
            const CapturedLog log;
            write(path, bytes);
            const KernelCache reader({.folder = folder.path()});
            CHECK_FALSE(reader.find(key_of(1)).has_value());
            CHECK_FALSE(reader.find(key_of(1)).has_value());
            CHECK(log.warnings().size() == 1);
            CHECK_FALSE(reader.list().at(0).fault.empty());
        }
        REQUIRE(store(cache, 1, "some machine code"));
        CHECK(read(path) == good);
        CHECK(cache.find(key_of(1)).has_value());
    }

    TEST_CASE("find: a whole kernel under the name of another is foreign") {
        const ScratchFolder folder;
        const CapturedLog log;
        const KernelCache cache({.folder = folder.path()});
        REQUIRE(store(cache, 1, "one"));
        const std::string path = cache.list().at(0).path;
        REQUIRE(store(cache, 2, "two"));
        const std::string other = cache.find(key_of(2))->path;
        fs::copy_file(other, path, fs::copy_options::overwrite_existing);
        CHECK_FALSE(cache.find(key_of(1)).has_value());
        REQUIRE(log.warnings().size() == 1);
        CHECK(log.warnings()[0].find("another kernel") != std::string::npos);
        CHECK(cache.find(key_of(2)).has_value());
    }

    TEST_CASE("store: a file in place of the folder costs one warning") {
        const ScratchFolder folder;
        const CapturedLog log;
        write(folder / "cache", "a file");
        const KernelCache cache({.folder = folder / "cache"});
        CHECK_FALSE(cache.find(key_of(1)).has_value());
        CHECK(cache.lock(key_of(1), 0.1) == nullptr);
        CHECK_FALSE(store(cache, 1, "one"));
        CHECK_FALSE(store(cache, 2, "two"));
        REQUIRE(log.warnings().size() == 1);
        CHECK(log.warnings()[0].find(folder / "cache") != std::string::npos);
        CHECK(read(folder / "cache") == "a file");
        CHECK(cache.list().empty());
        CHECK(cache.clear() == std::pair<int, Bytes>(0, 0));
    }

    TEST_CASE("store: without any folder it costs one warning") {
        const CapturedLog log;
        const KernelCache cache({.folder = ""});
        CHECK_FALSE(cache.find(key_of(1)).has_value());
        CHECK_FALSE(store(cache, 1, "one"));
        CHECK_FALSE(store(cache, 1, "one"));
        CHECK(log.warnings().size() == 1);
    }

    TEST_CASE("trim: deletes what was used longest ago, but nothing in use") {
        const ScratchFolder folder;
        const KernelCache unlimited({.folder = folder.path()});
        for (int i = 0; i < 5; ++i) {
            REQUIRE(store(unlimited, i, std::string(10000, 'x')));
        }
        const Bytes size = unlimited.list().at(0).size;
        for (int i = 0; i < 5; ++i) {  // kernel 0 is the oldest
            fs::last_write_time(unlimited.find(key_of(i))->path,
                                fs::file_time_type::clock::now() - std::chrono::minutes(10 - i));
        }
        CHECK(unlimited.trim({}).first == 0);
        CHECK(unlimited.find(key_of(1)).has_value());  // used now

        const KernelCache cache({.folder = folder.path(), .max_bytes = 3 * size});
        CHECK(cache.trim({key_of(0).digest}).first == 2);
        const std::vector<bool> kept = {true, true, false, false, true};
        for (int value = 0; value < 5; ++value) {
            CAPTURE(value);
            CHECK(cache.find(key_of(value)).has_value() == kept[static_cast<std::size_t>(value)]);
        }
    }

    TEST_CASE("trim: removes what interrupted writers left, once it is old") {
        const ScratchFolder folder;
        const KernelCache cache({.folder = folder.path()});
        REQUIRE(store(cache, 1, "one"));
        const std::string name = fs::path(cache.list().at(0).path).filename().string();
        const std::string young = folder / ("." + name + ".tmp-1-0");
        const std::string old = folder / ("." + name + ".tmp-1-1");
        write(young, "half");
        write(old, "half");
        fs::last_write_time(old, fs::file_time_type::clock::now() - std::chrono::hours(2));
        cache.trim({});
        CHECK(fs::exists(young));
        CHECK_FALSE(fs::exists(old));
        CHECK(cache.find(key_of(1)).has_value());
    }

    TEST_CASE("clear: deletes kernels and leftovers, and nothing else") {
        const ScratchFolder folder;
        const KernelCache cache({.folder = folder.path()});
        REQUIRE(store(cache, 1, "one"));
        REQUIRE(store(cache, 2, "two"));
        write(folder / "notes.txt", "mine");
        write(folder / ".x.kernel.tmp-1-0", "half");
        CHECK(cache.clear().first == 2);
        CHECK(cache.list().empty());
        CHECK(fs::exists(folder / "notes.txt"));
        CHECK_FALSE(fs::exists(folder / ".x.kernel.tmp-1-0"));
        CHECK_FALSE(cache.find(key_of(1)).has_value());
    }

    TEST_CASE("list: tells kernel, architecture, compiler and resources") {
        const ScratchFolder folder;
        const KernelCache cache({.folder = folder.path()});
        REQUIRE(store(cache, 7, "seven"));
        const std::vector<CacheEntry> entries = cache.list();
        REQUIRE(entries.size() == 1);
        CHECK(entries[0].kernel == "tiny[VALUE=7]");
        CHECK(entries[0].architecture == "sm_90a");
        CHECK(entries[0].compiler == "NVRTC 13.0 0123456789abcdef");
        CHECK(entries[0].digest == key_of(7).digest);
        CHECK(entries[0].resources.registers == 168);
        CHECK(entries[0].size == static_cast<Bytes>(fs::file_size(entries[0].path)));
        CHECK(entries[0].fault.empty());
    }

    TEST_CASE("lock: excludes others for the same kernel, and only for that one") {
        const ScratchFolder folder;
        const KernelCache cache({.folder = folder.path()});
        const KernelCache other({.folder = folder.path()});
        std::shared_ptr<void> held = cache.lock(key_of(1), 1);
        REQUIRE(held != nullptr);
        CHECK(other.lock(key_of(1), 0.03) == nullptr);
        CHECK(other.lock(key_of(2), 0.03) != nullptr);
        held.reset();
        CHECK(other.lock(key_of(1), 0.03) != nullptr);
    }

    TEST_CASE("default folder: XDG_CACHE_HOME, else HOME, else none") {
        const auto with = [](const char* cache, const char* home) {
            cache ? ::setenv("XDG_CACHE_HOME", cache, 1) : ::unsetenv("XDG_CACHE_HOME");
            home ? ::setenv("HOME", home, 1) : ::unsetenv("HOME");
            return default_cache_root();
        };
        const char* cache_now = std::getenv("XDG_CACHE_HOME");
        const std::string old_cache = cache_now ? cache_now : "";
        const char* home_now = std::getenv("HOME");
        const std::string old_home = home_now ? home_now : "";
        CHECK(with("/c", "/h") == "/c/dflash");
        CHECK(with("", "/h") == "/h/.cache/dflash");
        CHECK(with("relative", "/h") == "/h/.cache/dflash");  // the XDG specification: ignore
        CHECK(with(nullptr, "/h") == "/h/.cache/dflash");
        CHECK(with(nullptr, nullptr).empty());
        with(cache_now ? old_cache.c_str() : nullptr, home_now ? old_home.c_str() : nullptr);
        REQUIRE(default_pack_folders().size() == 2);
        CHECK(default_pack_folders()[0] ==
              (fs::read_symlink("/proc/self/exe").parent_path() / "kernels").string());
    }
}

}  // namespace
}  // namespace dflash::kernels
