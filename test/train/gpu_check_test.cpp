// SPDX-License-Identifier: Apache-2.0
#include <dflash/core/error.hpp>
#include <dflash/core/log.hpp>
#include <dflash/train/gpu_check.hpp>

#include <doctest/doctest.h>
#include <string>
#include <vector>

namespace dflash::train {
namespace {

constexpr Bytes kGiB = Bytes{1} << 30;

/// Warnings of one call.
std::vector<std::string> warnings_of(const std::vector<GpuUse>& gpus) {
    std::vector<std::string> warnings;
    const LogSink former = set_log_sink([&](LogLevel level, std::string_view line) {
        CHECK(level == LogLevel::Warning);
        warnings.emplace_back(line);
    });
    check_gpu_use(gpus);
    set_log_sink(former);
    return warnings;
}

GpuUse gpu_with(Bytes used, std::vector<ForeignProcess> processes) {
    return {"cuda:3", "NVIDIA H200, PCI 0000:1b:00.0", used, 140 * kGiB, std::move(processes)};
}

}  // namespace

TEST_SUITE("train.gpu_check") {
    TEST_CASE("GPUs that are free, or nearly, are taken without a word") {
        CHECK(warnings_of({}).empty());
        CHECK(warnings_of({gpu_with(kGiB, {}),
                           gpu_with(kGiB, {{17, "Xorg", 200 << 20}, {18, "monitor", 300 << 20}})})
                  .empty());
        CHECK(warnings_of({gpu_with(kGiB / 2, {{17, "Xorg", std::nullopt}})}).empty());
        // The driver's own share of a process is not in what is told of it.
        CHECK(warnings_of({gpu_with(kGiB * 7 / 5, {{17, "python3", kGiB * 4 / 5}})}).empty());
    }

    TEST_CASE("a GPU in use by others is exit 4 with their ids, names and memory") {
        const std::vector<GpuUse> gpus{
            gpu_with(0, {}),
            gpu_with(81 * kGiB, {{4711, "python3", 80 * kGiB}, {42, "Xorg", 1 << 20}})};
        try {
            check_gpu_use(gpus);
            FAIL("expected an error");
        } catch (const Error& error) {
            CHECK(exit_code(error.kind()) == 4);
            const std::string text = error.what();
            for (const char* part :
                 {"cuda:3 has 80.00 GiB in use by process 4711 (\"python3\") with "
                  "80.00 GiB, process 42 (\"Xorg\") with 1.0 MiB",
                  "expected at most 1.00 GiB",
                  "PCI 0000:1b:00.0",
                  "--gpus"}) {
                CAPTURE(text);
                CAPTURE(part);
                CHECK(text.find(part) != std::string::npos);
            }
        }
    }

    TEST_CASE(
        "several processes count together, and one whose share is not told holds what is used") {
        CHECK_THROWS_WITH_AS(
            check_gpu_use({gpu_with(0, {{1, "a", kGiB * 3 / 4}, {2, "b", kGiB * 3 / 4}})}),
            doctest::Contains("1.50 GiB in use by process 1"),
            Error);
        CHECK_THROWS_WITH_AS(check_gpu_use({gpu_with(20 * kGiB, {{99, "", std::nullopt}})}),
                             doctest::Contains("process 99 (its name is not to be seen from here)"),
                             Error);
    }

    TEST_CASE("memory that nobody can be named for is a warning: it may be anybody's") {
        const std::vector<std::string> warnings = warnings_of({gpu_with(20 * kGiB, {})});
        REQUIRE(warnings.size() == 1);
        CHECK(warnings[0].find("20.00 GiB of 140.00 GiB in use") != std::string::npos);
        CHECK(warnings[0].find("nvidia-smi") != std::string::npos);
    }

    TEST_CASE("a name that a terminal would obey is shown, not obeyed") {
        CHECK_THROWS_WITH_AS(check_gpu_use({gpu_with(0, {{1, "a\x1b[2J", 2 * kGiB}})}),
                             doctest::Contains("a\\x1b[2J"),
                             Error);
    }

    TEST_CASE("CPU devices need no library and no GPU") {
        CHECK(read_gpu_use(gpu::parse_devices("cpu:4")).empty());
        CHECK_NOTHROW(check_gpus(gpu::parse_devices("cpu:4")));
    }
}

}  // namespace dflash::train
