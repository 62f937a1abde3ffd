// SPDX-License-Identifier: Apache-2.0
#include "captured_run.hpp"

#include <dflash/gpu/device.hpp>
#include <dflash/io/atomic_file.hpp>
#include <dflash/kernels/kernel_cache.hpp>
#include <dflash/kernels/model_kernels.hpp>

#include <cstdlib>
#include <doctest/doctest.h>
#include <filesystem>
#include <string>
#include <unistd.h>
#include <utility>
#include <vector>

namespace dflash::cli {
namespace {

int run_with(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), "kernels");
    return captured_run(std::move(arguments)).code;
}

std::string fresh_cache() {
    const auto folder = std::filesystem::temp_directory_path() /
                        ("dflash-kernels-command-" + std::to_string(::getpid()));
    std::filesystem::remove_all(folder);
    return folder.string();
}

TEST_SUITE("cli.kernels_command") {
    TEST_CASE("kernels: lists an empty cache without making it") {
        const std::string folder = fresh_cache();
        CHECK(run_with({"--cache", folder, "--arch", "sm_90a,sm_120a"}) == 0);
        CHECK_FALSE(std::filesystem::exists(folder));
        CHECK(run_with({"--help"}) == 0);
    }

    TEST_CASE("kernels: --clear deletes kernels, and only those") {
        const std::string folder = fresh_cache();
        const kernels::KernelCache cache({.folder = folder});
        const auto architecture = kernels::Architecture::parse("sm_90a");
        const kernels::KernelSpec spec = kernels::shipped_kernels(architecture).front();
        REQUIRE(cache.store({std::string(64, 'a'), "a compiler"},
                            spec,
                            architecture,
                            {.cubin = "code", .resources = {}, .compiler = "a compiler"}));
        io::write_file_atomically(folder + "/notes.txt", "mine");
        CHECK(run_with({"--cache", folder, "--arch", "sm_90a"}) == 0);
        CHECK(cache.list().size() == 1);
        CHECK(run_with({"--cache", folder, "--clear"}) == 0);
        CHECK(cache.list().empty());
        CHECK(std::filesystem::exists(folder + "/notes.txt"));
        std::filesystem::remove_all(folder);
    }

    TEST_CASE("kernels: a head in fp8 leaves out the architectures that have none") {
        const std::string folder = fresh_cache();
        const std::vector<std::string> arguments = {"kernels",
                                                    "--config",
                                                    "configs/tiny-cpu.toml",
                                                    "--set",
                                                    "draft.head_dim=64",
                                                    "--set",
                                                    "draft.head_precision=fp8",
                                                    "--cache",
                                                    folder};
        if (gpu::cuda_device_count() == 0) {
            const Outcome listed = captured_run(arguments);
            CHECK(listed.code == 0);
            CHECK(listed.output.find("left out  sm_80, sm_86") != std::string::npos);
            CHECK(listed.output.find("sm_90a") != std::string::npos);
        }
        // One that is asked for is refused.
        std::vector<std::string> old = arguments;
        old.insert(old.end(), {"--arch", "sm_80"});
        CHECK(captured_run(old).code == 2);
    }

    TEST_CASE("kernels: a wrong command line is exit 2, what cannot be compiled exit 4") {
        const std::string folder = fresh_cache();
        CHECK(run_with({"--arch", "sm_75"}) == 2);
        CHECK(run_with({"--compiel"}) == 2);
        CHECK(run_with({"--target", "test/golden/no-such-model"}) == 2);
        ::setenv("DFLASH_NO_JIT", "1", 1);
        CHECK(run_with({"--cache", folder, "--arch", "sm_90a", "--compile"}) == 4);
        ::unsetenv("DFLASH_NO_JIT");
        // NVRTC knows no such GPU.
        CHECK(run_with({"--cache", folder, "--arch", "sm_990a", "--compile"}) == 4);
        std::filesystem::remove_all(folder);
    }
}

}  // namespace
}  // namespace dflash::cli
