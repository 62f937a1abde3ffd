// SPDX-License-Identifier: Apache-2.0
#include "temp_folder.hpp"

#include <dflash/io/mapped_file.hpp>
#include <dflash/io/page_warmer.hpp>

#include <doctest/doctest.h>
#include <fcntl.h>
#include <fstream>
#include <sys/mman.h>
#include <unistd.h>
#include <vector>

namespace dflash::io {

namespace {

// Share of a file's pages that are in memory.
double resident_share(const MappedFile& file) {
    const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
    std::vector<unsigned char> pages((file.bytes().size() + page - 1) / page);
    void* const address = const_cast<std::byte*>(file.bytes().data());
    REQUIRE(::mincore(address, file.bytes().size(), pages.data()) == 0);
    std::size_t resident = 0;
    for (const unsigned char bits : pages) {
        resident += bits & 1U;
    }
    return static_cast<double>(resident) / static_cast<double>(pages.size());
}

void drop_from_cache(const std::string& path) {
    const int descriptor = ::open(path.c_str(), O_RDONLY);
    REQUIRE(descriptor >= 0);
    ::fdatasync(descriptor);
    ::posix_fadvise(descriptor, 0, 0, POSIX_FADV_DONTNEED);
    ::close(descriptor);
}

}  // namespace

TEST_SUITE("io.page_warmer") {
    TEST_CASE(
        "page warmer: files are in memory afterwards, and those that are missing do no harm") {
        const test::TempFolder folder;
        const std::string path = folder / "weights";
        std::ofstream(path, std::ios::binary) << std::string(9'000'000, 'x');
        drop_from_cache(path);
        PageWarmer warmer({"/no/such/file", path});
        warmer.wait();
        CHECK(resident_share(MappedFile(path)) == 1);
    }

    TEST_CASE("page warmer: ends in the middle when it is not needed any more") {
        const test::TempFolder folder;
        const std::string path = folder / "weights";
        std::ofstream(path, std::ios::binary) << std::string(1000, 'x');
        const PageWarmer warmer(std::vector<std::string>(100'000, path));
    }

    TEST_CASE("page warmer: the system says how much memory is free") {
        CHECK(available_memory() > 1'000'000);
    }
}

}  // namespace dflash::io
