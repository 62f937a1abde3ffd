// SPDX-License-Identifier: Apache-2.0
#include <dflash/core/error.hpp>
#include <dflash/kernels/architecture.hpp>
#include <dflash/kernels/kernel_error.hpp>

#include <doctest/doctest.h>
#include <string>
#include <vector>

namespace dflash::kernels {
namespace {

TEST_SUITE("kernels.architecture") {
    TEST_CASE("architecture: names are read and written alike") {
        for (const std::string name : {"sm_80", "sm_89", "sm_90", "sm_90a", "sm_100a", "sm_121a"}) {
            CAPTURE(name);
            CHECK(Architecture::parse(name).name() == name);
        }
    }

    TEST_CASE("architecture: what NVRTC or the kernels do not have is refused by name") {
        for (const std::string name : {"",
                                       "sm_",
                                       "80",
                                       "sm_75",
                                       "compute_90a",
                                       "sm_90f",
                                       "sm_9000",
                                       "sm_80a",
                                       "sm_-80",
                                       "sm_90 "}) {
            CAPTURE(name);
            CHECK_THROWS_AS(Architecture::parse(name), Error);
        }
        CHECK_THROWS_AS(parse_architectures(""), Error);
        CHECK_THROWS_AS(parse_architectures("sm_80,,sm_90a"), Error);
        // Nobody would find kernels for them.
        CHECK_THROWS_WITH_AS(parse_architectures("sm_80,sm_90"),
                             doctest::Contains("got sm_90, expected sm_90a"),
                             Error);
    }

    TEST_CASE("architecture: lists keep their order and drop repetitions") {
        const std::vector<Architecture> list = parse_architectures("sm_90a,sm_80,sm_90a");
        REQUIRE(list.size() == 2);
        CHECK(list[0].name() == "sm_90a");
        CHECK(list[1].name() == "sm_80");
        CHECK(standard_architectures().size() == 6);
    }

    TEST_CASE("architecture: a GPU gets the target of exactly its chip") {
        struct Case {
            int major;
            int minor;
            std::string name;
        };

        const std::vector<Case> cases = {{8, 0, "sm_80"},
                                         {8, 6, "sm_86"},
                                         {8, 9, "sm_89"},
                                         {9, 0, "sm_90a"},
                                         {10, 0, "sm_100a"},
                                         {10, 3, "sm_103a"},
                                         {12, 0, "sm_120a"},
                                         {14, 0, "sm_140a"}};
        for (const Case& gpu : cases) {
            CAPTURE(gpu.name);
            const Architecture own = Architecture::of_capability(gpu.major, gpu.minor);
            CHECK(own.name() == gpu.name);
            CHECK(own.runs_on(gpu.major, gpu.minor));
        }
        try {
            Architecture::of_capability(7, 5);
            FAIL("expected an error");
        } catch (const KernelError& error) {
            CHECK(error.fault() == KernelFault::WrongArchitecture);
            CHECK(std::string(error.what()).find("7.5") != std::string::npos);
        }
    }

    TEST_CASE("architecture: binaries run on the same major version, exact ones on one chip only") {
        CHECK(Architecture::parse("sm_80").runs_on(8, 6));
        CHECK_FALSE(Architecture::parse("sm_86").runs_on(8, 0));
        CHECK_FALSE(Architecture::parse("sm_80").runs_on(9, 0));
        CHECK_FALSE(Architecture::parse("sm_100a").runs_on(10, 3));
        CHECK_FALSE(Architecture::parse("sm_90a").runs_on(12, 0));
    }
}

}  // namespace
}  // namespace dflash::kernels
