// SPDX-License-Identifier: Apache-2.0
#include "captured_log.hpp"
#include "scratch_folder.hpp"
#include "tiny_kernel.hpp"

#include <dflash/kernels/device_source.hpp>
#include <dflash/kernels/kernel_error.hpp>

#include <cstdlib>
#include <doctest/doctest.h>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

namespace dflash::kernels {
namespace {

std::string read(const std::filesystem::path& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
}

TEST_SUITE("kernels.device_source") {
    TEST_CASE("embedded: every device source of the tree is in the program, byte for byte") {
        const SourceSet sources = SourceSet::embedded();
        std::size_t count = 0;
        for (const auto& entry : std::filesystem::directory_iterator("src/kernels/cuda")) {
            const std::string name = entry.path().filename().string();
            CAPTURE(name);
            const std::string* text = sources.find(name);
            REQUIRE(text != nullptr);
            CHECK_MESSAGE((*text == read(entry.path())), "another text than in the tree");
            ++count;
        }
        CHECK(sources.files().size() == count);
        CHECK(count > 0);
    }

    TEST_CASE("reachable: follows includes, each file once, in order of mention") {
        SourceSet sources;
        sources.set("a.cu", "#include \"b.cuh\"\n  #  include\t\"c.cuh\"\n#include <d.cuh>\n");
        sources.set("b.cuh", "#pragma once\n#include \"c.cuh\"\nint x; // #include \"no.cuh\"\n");
        sources.set("c.cuh", "#include \"b.cuh\"\r\n");
        sources.set("unused.cuh", "");
        CHECK(sources.reachable("a.cu") == std::vector<std::string>{"a.cu", "b.cuh", "c.cuh"});
        CHECK(sources.reachable("unused.cuh") == std::vector<std::string>{"unused.cuh"});
    }

    TEST_CASE("reachable: names the missing file and who includes it") {
        SourceSet sources;
        sources.set("a.cu", "#include \"b.cuh\"\n");
        try {
            sources.reachable("a.cu");
            FAIL("expected an error");
        } catch (const KernelError& error) {
            CHECK(error.fault() == KernelFault::Source);
            CHECK(error.parts().what.find("b.cuh") != std::string::npos);
            CHECK(error.parts().where.find("a.cu") != std::string::npos);
        }
    }

    TEST_CASE("embedded: DFLASH_KERNEL_DIR replaces the files of the program, with a warning") {
        const ScratchFolder folder;
        std::ofstream(folder / "other.cu") << "text";
        std::ofstream(folder / "notes.txt") << "no source";
        ::setenv("DFLASH_KERNEL_DIR", folder.path().c_str(), 1);
        {
            const CapturedLog log;
            const SourceSet sources = SourceSet::embedded();
            CHECK(sources.files().size() == 1);
            CHECK(*sources.find("other.cu") == "text");
            REQUIRE(log.warnings().size() == 1);
            CHECK(log.warnings()[0].find(folder.path()) != std::string::npos);
            ::setenv("DFLASH_KERNEL_DIR", (folder / "nowhere").c_str(), 1);
            CHECK_THROWS_AS(SourceSet::embedded(), Error);
        }
        ::unsetenv("DFLASH_KERNEL_DIR");
    }
}

}  // namespace
}  // namespace dflash::kernels
