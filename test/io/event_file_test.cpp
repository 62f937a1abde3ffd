// SPDX-License-Identifier: Apache-2.0
#include "expect_error.hpp"
#include "file_size_limit.hpp"
#include "temp_folder.hpp"

#include <dflash/io/event_file.hpp>

#include <doctest/doctest.h>
#include <fmt/format.h>
#include <limits>

namespace dflash::io {
namespace {

using test::TempFolder;

std::string hex(std::string_view bytes) {
    std::string out;
    for (const char c : bytes) {
        out += fmt::format("{:02x}", static_cast<unsigned char>(c));
    }
    return out;
}

TEST_SUITE_BEGIN("io.event_file");

TEST_CASE("CRC-32C has its published values") {
    // RFC 3720, appendix B.4, and the check value of the CRC catalogue.
    CHECK(crc32c("") == 0);
    CHECK(crc32c("123456789") == 0xE3069283);
    CHECK(crc32c(std::string(32, '\0')) == 0x8A9136AA);
    CHECK(crc32c(std::string(32, '\xff')) == 0x62A8AB43);
    std::string rising;
    for (int i = 0; i < 32; ++i) {
        rising += static_cast<char>(i);
    }
    CHECK(crc32c(rising) == 0x46DD794E);
    // By hand: 0x8A9136AA turned right by 15 bits is 0x6D551522; plus 0xA282EAD8.
    CHECK(masked_crc32c(std::string(32, '\0')) == 0x0FD7FFFA);
}

TEST_CASE("records are those of TensorBoard's own writer") {
    // Printed by tools/golden/check_events.py --fixture with tensorboard 2.21.0.
    CHECK(hex(version_record(1700000000.25)) ==
          "1800000000000000a37f4b220900001040fc54d9411a0d627261696e2e4576656e743a32338d2fe9");
    const Scalar scalars[] = {{"train/loss", 2.5}, {"train/lr", 6e-4}};
    CHECK(hex(scalars_record(1700000001.5, 300, scalars)) ==
          "3200000000000000241956ec0900006040fc54d94110ac022a240a110a0a747261696e2f6c6f7373150000"
          "20400a0f0a08747261696e2f6c721552491d3ad9571552");
    CHECK(hex(session_start_record(1700000002.0, 41)) ==
          "0f000000000000006d532b090900008040fc54d94110293a020801805628fe");
}

TEST_CASE("a file holds its records in order, once they are flushed") {
    const TempFolder folder;
    const std::string path = folder / "events.out.tfevents.1.host";
    EventFile file(path, 1.5);
    CHECK(file.path() == path);
    CHECK(test::read_text(path) == version_record(1.5));
    const Scalar loss{"loss", std::numeric_limits<double>::quiet_NaN()};
    file.add_session_start(2, 1);
    file.add_scalars(3, 0, {&loss, 1});
    file.add_scalars(4, 1, {});
    CHECK(test::read_text(path) == version_record(1.5));
    CHECK(file.pending_bytes() > 0);
    file.flush();
    CHECK(file.pending_bytes() == 0);
    file.flush();
    CHECK(test::read_text(path) == version_record(1.5) + session_start_record(2, 1) +
                                       scalars_record(3, 0, {&loss, 1}) + scalars_record(4, 1, {}));
    test::expect_error(
        ErrorKind::Storage, {path, "File exists"}, [&] { const EventFile other(path, 1); });
}

TEST_CASE("records that a full disk cut are written whole later") {
    const TempFolder folder;
    const std::string path = folder / "events";
    EventFile file(path, 1);
    file.add_session_start(2, 7);
    {
        const test::FileSizeLimit limit(version_record(1).size() + 5);
        test::expect_error(ErrorKind::Storage, {path, "File too large"}, [&] { file.flush(); });
        CHECK(test::read_text(path).size() == version_record(1).size() + 5);
        test::expect_error(ErrorKind::Storage, {path}, [&] { file.flush(); });
    }
    file.add_session_start(3, 8);
    file.flush();
    CHECK(test::read_text(path) ==
          version_record(1) + session_start_record(2, 7) + session_start_record(3, 8));
}

TEST_SUITE_END();

}  // namespace
}  // namespace dflash::io
