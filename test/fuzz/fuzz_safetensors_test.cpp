// SPDX-License-Identifier: Apache-2.0
#include "fuzz_loop.hpp"
#include "mutation.hpp"
#include "temp_folder.hpp"

#include <dflash/io/safetensors.hpp>

#include <cstring>
#include <doctest/doctest.h>
#include <fstream>

namespace dflash {

namespace {

constexpr std::string_view kHeader =
    R"({"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},)"
    R"("b.weight":{"dtype":"BF16","shape":[4],"data_offsets":[24,32]},)"
    R"("c":{"dtype":"I64","shape":[],"data_offsets":[32,40]},)"
    R"("empty":{"dtype":"U8","shape":[0,7],"data_offsets":[40,40]}})";
constexpr std::size_t kDataBytes = 40;

std::string file_of(std::string_view header, std::uint64_t length, std::size_t data_bytes) {
    std::string file(sizeof(length), '\0');
    std::memcpy(file.data(), &length, sizeof(length));
    return file.append(header).append(data_bytes, '\x5a');
}

// The header changed as a tree or as text, with a true, a wrong or a huge length, or the whole file
// changed byte by byte.
std::string make_input(RandomStream& random) {
    const std::string header = test::mutate_json_text({std::string(kHeader)}, random);
    const std::string changed = random.below(4) == 0 ? std::string(kHeader) : header;
    const std::size_t data = random.below(4) == 0 ? random.below(100) : kDataBytes;
    std::uint64_t length = changed.size();
    if (random.below(8) == 0) {
        length = random.below(2) == 0 ? random.next_u64() : length + random.below(32) - 16;
    }
    const std::string file = file_of(changed, length, data);
    return random.below(6) == 0 ? test::mutate(file, std::string_view("\0{}\":,[]0", 9), random)
                                : file;
}

}  // namespace

TEST_SUITE("fuzz.safetensors") {
    TEST_CASE("fuzz: a safetensors file is read or refused, and views lie in it") {
        const test::TempFolder folder;
        const std::string path = folder / "model.safetensors";
        test::fuzz({.name = "safetensors",
                    .make_input = make_input,
                    .read = [&](const std::string& input) {
                        std::ofstream(path, std::ios::binary | std::ios::trunc) << input;
                        const io::SafetensorsFile file(path);
                        std::uint64_t sum = 0;
                        std::size_t bytes = 0;
                        for (const io::TensorView& tensor : file.tensors()) {
                            // Reading past the mapping would be a crash.
                            for (const std::byte b : tensor.data) {
                                sum += static_cast<std::uint64_t>(b);
                            }
                            bytes += tensor.data.size();
                            CHECK_FALSE(io::describe(tensor).empty());
                        }
                        CHECK(bytes < input.size());
                        CHECK(sum <= 255 * bytes);
                    }});
    }
}

}  // namespace dflash
