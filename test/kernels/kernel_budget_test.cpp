// SPDX-License-Identifier: Apache-2.0
// Every kernel in use compiles for every standard architecture within the budget of
// kernel_budgets.txt, without a warning. DFLASH_WRITE_BUDGETS=1 writes the table anew; the change
// then shows in the diff.
#include <dflash/kernels/compiler.hpp>
#include <dflash/kernels/kernel_cache.hpp>
#include <dflash/kernels/model_kernels.hpp>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <doctest/doctest.h>
#include <exception>
#include <fmt/format.h>
#include <fstream>
#include <map>
#include <mutex>
#include <optional>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace dflash::kernels {
namespace {

constexpr const char* kTable = "test/kernels/kernel_budgets.txt";

using Key = std::pair<std::string, std::string>;  // kernel, architecture

/// Largest values that are accepted.
struct Budget {
    int registers = 0;
    int stack = 0;
    int spill_stores = 0;
    int spill_loads = 0;
    int shared = 0;  // static and dynamic
};

struct Compiled {
    KernelSpec spec;
    Architecture architecture;
    Budget used{};
    std::string log{};
    std::string error{};
};

std::map<Key, Budget> read_table() {
    std::map<Key, Budget> table;
    std::ifstream file(kTable);
    for (std::string line; std::getline(file, line);) {
        if (line.empty() || line.front() == '#') {
            continue;
        }
        std::istringstream fields(line);
        Key key;
        Budget budget;
        fields >> key.first >> key.second >> budget.registers >> budget.stack >>
            budget.spill_stores >> budget.spill_loads >> budget.shared;
        REQUIRE_MESSAGE(!fields.fail(), line);
        REQUIRE_MESSAGE(table.emplace(key, budget).second, line);
    }
    return table;
}

void write_table(const std::vector<Compiled>& kernels) {
    std::ofstream file(kTable);
    file << "# Budgets of the kernels in use: registers of a thread, bytes of stack, spill stores "
            "and spill loads,\n"
            "# bytes of shared memory of a block (static and dynamic). As NVRTC 13.0 compiles "
            "them; written by\n"
            "# DFLASH_WRITE_BUDGETS=1 dflash_kernel_budget_test.\n"
            "# kernel architecture registers stack stores loads shared\n";
    for (const Compiled& kernel : kernels) {
        const Budget& used = kernel.used;
        file << fmt::format("{} {} {} {} {} {} {}\n",
                            kernel.spec.id(),
                            kernel.architecture.name(),
                            used.registers,
                            used.stack,
                            used.spill_stores,
                            used.spill_loads,
                            used.shared);
    }
}

/// From the user's cache, or compiled and, if the compiler had nothing to say, kept there: what did
/// not change since the last run is not compiled again.
KernelBinary cached_or_compiled(const Compiler& compiler,
                                const KernelCache& cache,
                                const Compiled& kernel) {
    const CacheKey key{kernel_digest(compiler.sources(), kernel.spec, kernel.architecture),
                       compiler.identity()};
    if (std::optional<CachedKernel> found = cache.find(key)) {
        return std::move(found->binary);
    }
    KernelBinary binary = compiler.compile(kernel.spec, kernel.architecture);
    if (key.compiler && binary.log.find("warning") == std::string::npos) {
        cache.store(key, kernel.spec, kernel.architecture, binary);
    }
    return binary;
}

/// Every kernel in use for every architecture, on all processors.
std::vector<Compiled> compile_all() {
    std::vector<Compiled> kernels;
    for (const Architecture& architecture : standard_architectures()) {
        for (const KernelSpec& spec : shipped_kernels(architecture)) {
            kernels.push_back({.spec = spec, .architecture = architecture});
        }
    }
    const Compiler compiler(SourceSet::embedded());
    const std::string root = default_cache_root();
    const KernelCache cache({.folder = root.empty() ? root : root + "/test-kernels"});
    std::atomic<std::size_t> next = 0;
    const auto work = [&] {
        for (std::size_t i = next++; i < kernels.size(); i = next++) {
            Compiled& kernel = kernels[i];
            try {
                const KernelBinary binary = cached_or_compiled(compiler, cache, kernel);
                kernel.used = {.registers = binary.resources.registers,
                               .stack = binary.resources.stack_bytes,
                               .spill_stores = binary.resources.spill_store_bytes,
                               .spill_loads = binary.resources.spill_load_bytes,
                               .shared = binary.resources.static_shared_bytes +
                                         kernel.spec.dynamic_shared_bytes};
                kernel.log = binary.log;
            } catch (const std::exception& error) {
                kernel.error = error.what();
            }
        }
    };
    std::vector<std::jthread> threads;
    for (unsigned i = 0; i < std::max(1U, std::thread::hardware_concurrency()); ++i) {
        threads.emplace_back(work);
    }
    threads.clear();
    return kernels;
}

TEST_SUITE("kernels.kernel_budget") {
    TEST_CASE("budget: every kernel in use compiles for six architectures within its budget") {
        const std::vector<Compiled> kernels = compile_all();
        if (const char* write = std::getenv("DFLASH_WRITE_BUDGETS"); write && *write == '1') {
            write_table(kernels);
        }
        std::map<Key, Budget> table = read_table();
        for (const Compiled& kernel : kernels) {
            const Key key(kernel.spec.id(), kernel.architecture.name());
            CAPTURE(key.first);
            CAPTURE(key.second);
            CHECK(kernel.error == "");
            CHECK(kernel.log.find("warning") == std::string::npos);
            const auto found = table.find(key);
            CHECK_MESSAGE(found != table.end(), "has no budget");
            if (found != table.end()) {
                const Budget budget = found->second;
                CHECK(kernel.used.registers <= budget.registers);
                CHECK(kernel.used.stack <= budget.stack);
                CHECK(kernel.used.spill_stores <= budget.spill_stores);
                CHECK(kernel.used.spill_loads <= budget.spill_loads);
                CHECK(kernel.used.shared <= budget.shared);
                table.erase(found);
            }
        }
        for (const auto& [key, budget] : table) {
            FAIL_CHECK("a budget for a kernel that is not in use: ", key.first, " ", key.second);
        }
        CHECK(kernels.size() >= 6 * 4);
    }

    TEST_CASE("budget: every accepted spill has its reason") {
        for (const Architecture& architecture : standard_architectures()) {
            for (const KernelSpec& spec : shipped_kernels(architecture)) {
                for (const SpillAllowance& allowance : spec.allowed_spills) {
                    CAPTURE(spec.id());
                    CHECK(allowance.reason.size() > 10);
                    CHECK(allowance.max_bytes > 0);
                }
            }
        }
    }
}

}  // namespace
}  // namespace dflash::kernels
