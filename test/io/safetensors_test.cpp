// SPDX-License-Identifier: Apache-2.0
#include "caught_log.hpp"
#include "expect_error.hpp"
#include "mutation.hpp"
#include "temp_folder.hpp"

#include <dflash/io/safetensors.hpp>

#include <algorithm>
#include <cstring>
#include <doctest/doctest.h>
#include <fmt/format.h>

namespace dflash::io {
namespace {

using test::expect_error;
using test::TempFolder;

/// A file with this header and `data_bytes` bytes 0, 1, 2, ... of data.
std::string file_of(std::string_view header, std::size_t data_bytes) {
    std::string out;
    for (int i = 0; i < 8; ++i) {
        out += static_cast<char>(header.size() >> (8 * i) & 0xFF);
    }
    out += header;
    for (std::size_t i = 0; i < data_bytes; ++i) {
        out += static_cast<char>(i & 0xFF);
    }
    return out;
}

TensorSource source_of(std::string name,
                       DType dtype,
                       std::vector<std::int64_t> shape,
                       std::string_view data) {
    return {.name = std::move(name),
            .dtype = dtype,
            .shape = std::move(shape),
            .write = [data](auto& sink) {
                // In two pieces, as a writer that stages parts would do it.
                const auto bytes = std::as_bytes(std::span(data.data(), data.size()));
                sink(bytes.first(bytes.size() / 2));
                sink(bytes.subspan(bytes.size() / 2));
            }};
}

std::string text_of(const TensorView& tensor) {
    return {reinterpret_cast<const char*>(tensor.data.data()), tensor.data.size()};
}

TEST_SUITE_BEGIN("io.safetensors");

TEST_CASE("dtypes have the names and sizes of the format") {
    const std::tuple<DType, const char*, Bytes> cases[] = {
        {DType::Bool, "BOOL", 1},
        {DType::U8, "U8", 1},
        {DType::I8, "I8", 1},
        {DType::I16, "I16", 2},
        {DType::I32, "I32", 4},
        {DType::I64, "I64", 8},
        {DType::F8E4M3, "F8_E4M3", 1},
        {DType::F16, "F16", 2},
        {DType::BF16, "BF16", 2},
        {DType::F32, "F32", 4},
        {DType::F64, "F64", 8},
    };
    for (const auto& [dtype, name, size] : cases) {
        CAPTURE(name);
        CHECK(to_string(dtype) == name);
        CHECK(size_of(dtype) == size);
    }
}

TEST_CASE("what is written is read back, in the given order") {
    const TempFolder folder;
    const std::string path = folder / "a.safetensors";
    write_safetensors(path,
                      {source_of("z", DType::BF16, {3}, "abcdef"),
                       source_of("empty", DType::F32, {2, 0}, ""),
                       source_of("a \"name\"", DType::U8, {1, 5}, "12345"),
                       source_of("scalar", DType::F64, {}, "01234567")},
                      {{"format", "pt"}, {"note", "\xc3\xa9\n"}});
    // The layout that other readers expect: aligned data, entries as declared.
    const std::string raw = test::read_text(path);
    const auto header_size = static_cast<unsigned char>(raw[0]) + 256 * raw[1];
    CHECK((8 + header_size) % 8 == 0);
    CHECK(raw.size() == static_cast<std::size_t>(8 + header_size + 19));
    CHECK(raw.ends_with("abcdef1234501234567"));

    const SafetensorsFile file(path);
    CHECK(file.path() == path);
    REQUIRE(file.tensors().size() == 4);
    CHECK(file.tensors()[0].name == "z");
    CHECK(file.tensors()[1].name == "empty");
    CHECK(file.tensors()[2].name == "a \"name\"");
    CHECK(file.tensors()[3].name == "scalar");
    CHECK(text_of(file.at("z")) == "abcdef");
    CHECK(text_of(file.at("a \"name\"")) == "12345");
    CHECK(file.at("a \"name\"").shape == std::vector<std::int64_t>{1, 5});
    CHECK(describe(file.at("z")) == "[3] BF16");
    CHECK(describe(file.at("scalar")) == "[] F64");
    CHECK(file.at("scalar").numel() == 1);
    CHECK(file.at("empty").numel() == 0);
    CHECK(file.at("empty").data.empty());
    CHECK(file.metadata() ==
          std::map<std::string, std::string>{{"format", "pt"}, {"note", "\xc3\xa9\n"}});
}

TEST_CASE("a moved file keeps its views") {
    const TempFolder folder;
    write_safetensors(folder / "a", {source_of("t", DType::U8, {3}, "abc")});
    SafetensorsFile first(folder / "a");
    const TensorView* tensor = first.find("t");
    SafetensorsFile second = std::move(first);
    CHECK(second.find("t") == tensor);
    CHECK(text_of(*tensor) == "abc");
    CHECK(second.metadata().empty());
}

TEST_CASE("a missing tensor is named with the nearest ones") {
    const TempFolder folder;
    write_safetensors(folder / "a",
                      {source_of("layers.0.q.weight", DType::U8, {1}, "a"),
                       source_of("layers.0.k.weight", DType::U8, {1}, "b")});
    const SafetensorsFile file(folder / "a");
    CHECK(file.find("layers.0.v.weight") == nullptr);
    expect_error(ErrorKind::Data,
                 {"no tensor \"layers.0.v.weight\" among 2",
                  folder / "a",
                  "nearest names are \"layers.0.q.weight\", \"layers.0.k.weight\""},
                 [&] { (void)file.at("layers.0.v.weight"); });
    expect_error(
        ErrorKind::Data, {"no tensor"}, [&] { (void)file.at("something.else.altogether"); });
}

TEST_CASE("files of other writers are read: any order, gaps in alignment, padding, zero sizes") {
    const TempFolder folder;
    test::write_text(folder / "a",
                     file_of(R"({"b":{"shape":[2],"data_offsets":[1,5],"dtype":"F16"},)"
                             R"("z":{"dtype":"F32","shape":[0,9],"data_offsets":[1,1]},)"
                             R"("a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}   )",
                             5));
    const SafetensorsFile file(folder / "a");
    REQUIRE(file.tensors().size() == 3);
    CHECK(file.tensors()[0].name == "a");
    CHECK(file.tensors()[1].name == "z");
    CHECK(file.tensors()[2].name == "b");
    CHECK(text_of(file.at("b")) == "\x01\x02\x03\x04");
    test::write_text(folder / "none", file_of("{}", 0));
    CHECK(SafetensorsFile(folder / "none").tensors().empty());
}

TEST_CASE("malformed files are refused") {
    struct Case {
        std::string content;
        std::vector<std::string_view> message;
    };

    const auto entry = [](std::string_view fields, std::size_t bytes = 4) {
        return file_of(fmt::format("{{\"t\":{{{}}}}}", fields), bytes);
    };
    const std::string good = R"("dtype":"F32","shape":[1],"data_offsets":[0,4])";
    std::string huge_length = file_of("{}", 0);
    huge_length[7] = '\x7f';
    std::string beyond = file_of("{}", 0);
    beyond[0] = 3;
    const Case cases[] = {
        {"", {"got 0 bytes, expected at least 8", "cut short"}},
        {"1234567", {"got 7 bytes"}},
        {huge_length, {"header is 9151314442816847874 bytes long, the file has 2"}},
        {std::string(8, '\xff') + "{}", {"header is 18446744073709551615 bytes long"}},
        {beyond, {"the header is 3 bytes long, the file has 2 after the length"}},
        {file_of("", 0), {"header begins with nothing"}},
        {file_of("[]", 0), {"header begins with \"[\""}},
        {file_of(" {}", 0), {"header begins with \" \""}},
        {file_of("{\"a\"", 0), {"header:1:5", "expected \":\""}},
        {file_of("{\"\xff\":1}", 0), {"not UTF-8"}},
        {file_of("{}", 1), {"1 bytes after the last tensor belong to no tensor"}},
        {file_of("{\"t\":1}", 0), {"\"t\": entry: got a number, expected an object"}},
        {entry(R"("shape":[1],"data_offsets":[0,4])"), {"dtype: got nothing"}},
        {entry(R"("dtype":1,"shape":[1],"data_offsets":[0,4])"), {"dtype: got a number"}},
        {entry(R"("dtype":"F33","shape":[1],"data_offsets":[0,4])"),
         {"\"t\": dtype: got \"F33\", expected one of BOOL", "F64"}},
        {entry(R"("dtype":"F32","data_offsets":[0,4])"), {"shape: got nothing"}},
        {entry(R"("dtype":"F32","shape":4,"data_offsets":[0,4])"), {"shape: got a number"}},
        {entry(R"("dtype":"F32","shape":[-1],"data_offsets":[0,4])"), {"shape: got \"-1\""}},
        {entry(R"("dtype":"F32","shape":[1.5],"data_offsets":[0,4])"), {"shape: got \"1.5\""}},
        {entry(R"("dtype":"F32","shape":[9223372036854775808],"data_offsets":[0,4])"),
         {"shape: got \"9223372036854775808\""}},
        {entry(R"("dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,4])"),
         {"shape: got [4294967296, 4294967296] F32, expected a size below 2^63"}},
        {entry(R"("dtype":"F32","shape":[4294967296,4294967296,0],"data_offsets":[0,0])", 0),
         {"expected a size below 2^63"}},
        {entry(R"("dtype":"F64","shape":[2305843009213693952],"data_offsets":[0,4])"),
         {"expected a size below 2^63"}},
        {entry(R"("dtype":"F32","shape":[1])"), {"data_offsets: got nothing"}},
        {entry(R"("dtype":"F32","shape":[1],"data_offsets":[0])"), {"expected [begin, end]"}},
        {entry(R"("dtype":"F32","shape":[1],"data_offsets":[0,4,8])"), {"expected [begin, end]"}},
        {entry(R"("dtype":"F32","shape":[1],"data_offsets":[4,0])"),
         {"data_offsets: got [4, 0], expected begin <= end <= 4"}},
        {entry(R"("dtype":"F32","shape":[1],"data_offsets":[0,8])"),
         {"expected begin <= end <= 4"}},
        {entry(
             R"("dtype":"F32","shape":[1],"data_offsets":[9223372036854775804,9223372036854775807])"),
         {"expected begin <= end <= 4"}},
        {entry(R"("dtype":"F32","shape":[1],"data_offsets":[-4,0])"), {"got \"-4\""}},
        {entry(R"("dtype":"F32","shape":[2],"data_offsets":[0,4])"),
         {"\"t\": data_offsets: got 4 bytes, expected 8 for [2] F32"}},
        {entry(R"("dtype":"F32","shape":[0],"data_offsets":[0,4])"), {"expected 0 for [0] F32"}},
        {entry(R"("dtype":"F32","shape":[1],"data_offsets":[1,5])", 5),
         {"1 bytes between the header and \"t\" belong to no tensor"}},
        {entry(good + R"(,"more":1)"), {"entry: got \"more\""}},
        {entry(good + R"(,"dtype":"F32")"), {"dtype stands twice"}},
        {file_of(fmt::format("{{\"t\":{{{}}},\"t\":{{{}}}}}", good, good), 4),
         {"\"t\" stands twice in the header"}},
        {file_of(
             fmt::format(R"({{"t":{{{}}},"u":{{"dtype":"U8","shape":[2],"data_offsets":[3,5]}}}})",
                         good),
             5),
         {"\"u\" overlaps \"t\""}},
        {file_of(fmt::format(R"({{"t":{{{}}},"u":{{{}}}}})", good, good), 4),
         {"\"u\" overlaps \"t\""}},
        {file_of(
             fmt::format(R"({{"t":{{{}}},"u":{{"dtype":"U8","shape":[2],"data_offsets":[5,7]}}}})",
                         good),
             7),
         {"1 bytes between \"t\" and \"u\" belong to no tensor"}},
        {file_of(R"({"__metadata__":[]})", 0), {"__metadata__", "a list"}},
        {file_of(R"({"__metadata__":{"a":1}})", 0), {"__metadata__", "\"a\": got a number"}},
        {file_of(R"({"__metadata__":{"a":"1","a":"2"}})", 0),
         {"\"a\" stands twice in __metadata__"}},
        {file_of(R"({"__metadata__":{},"__metadata__":{}})", 0), {"stands twice"}},
    };
    const TempFolder folder;
    const std::string path = folder / "bad.safetensors";
    for (const Case& c : cases) {
        CAPTURE(c.content);
        test::write_text(path, c.content);
        const std::string message =
            expect_error(ErrorKind::Data, {path}, [&] { const SafetensorsFile file(path); });
        for (const std::string_view part : c.message) {
            CAPTURE(message);
            CAPTURE(part);
            CHECK(message.find(part) != std::string::npos);
        }
    }
}

TEST_CASE("a header over the limit of the format is refused without reading it") {
    const TempFolder folder;
    const std::string path = folder / "big";
    std::string start = file_of("", 0);
    const std::uint64_t length = 100'000'001;
    std::memcpy(start.data(), &length, sizeof length);
    test::write_text(path, start);
    std::filesystem::resize_file(path, 8 + length);  // sparse
    expect_error(ErrorKind::Data, {"100000001 bytes long, expected at most 100000000"}, [&] {
        const SafetensorsFile file(path);
    });
}

TEST_CASE("files that cannot be read are storage errors, what is no file is wrong data") {
    const TempFolder folder;
    expect_error(ErrorKind::Storage, {folder / "none", "No such file"}, [&] {
        const SafetensorsFile file(folder / "none");
    });
    expect_error(ErrorKind::Data, {"a folder, expected a file"}, [&] {
        const SafetensorsFile file(folder.path());
    });
}

TEST_CASE("damaged files are read within bounds or refused") {
    const std::string seeds[] = {
        file_of(
            R"({"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[2,3],)"
            R"("data_offsets":[0,24]},"b":{"dtype":"BF16","shape":[4],"data_offsets":[24,32]}})",
            32),
        file_of(R"({"a":{"dtype":"U8","shape":[3],"data_offsets":[0,3]},"b":{"dtype":"I64",)"
                R"("shape":[],"data_offsets":[3,11]},"c":{"dtype":"F16","shape":[0],)"
                R"("data_offsets":[11,11]}})",
                11),
    };
    const TempFolder folder;
    const std::string path = folder / "damaged";
    int accepted = 0;
    int refused = 0;
    std::uint64_t touched = 0;
    for (std::uint64_t i = 0; i < 4000; ++i) {
        RandomStream random(12, Purpose::Test, 0, i);
        std::string content = test::mutate(
            seeds[i % std::size(seeds)], std::string_view("{}[]\",:0123456789-\0\xff", 20), random);
        CAPTURE(content);
        if (random.below(2) == 0 && content.size() >= 8) {
            // Half of the damage keeps the length right, so that the entries are reached.
            const std::size_t data_at =
                content.rfind('}') == std::string::npos ? 8 : content.rfind('}') + 1;
            const std::uint64_t length = std::max<std::size_t>(data_at, 8) - 8;
            std::memcpy(content.data(), &length, sizeof length);
        }
        test::write_text(path, content);
        try {
            const SafetensorsFile file(path);
            ++accepted;
            for (const TensorView& tensor : file.tensors()) {
                CHECK(tensor.numel() * size_of(tensor.dtype) ==
                      static_cast<Bytes>(tensor.data.size()));
                for (const std::byte byte : tensor.data) {
                    touched += std::to_integer<std::uint64_t>(byte);
                }
            }
        } catch (const Error& error) {
            ++refused;
            CHECK(error.kind() == ErrorKind::Data);
        }
    }
    CHECK(touched > 0);
    CHECK(accepted > 40);
    CHECK(refused > 2000);
}

TEST_CASE("the writer refuses what cannot be a file") {
    const TempFolder folder;
    const std::string path = folder / "a";
    const auto kind = ErrorKind::Internal;
    expect_error(kind, {"t: 3 bytes written, 4 announced"}, [&] {
        write_safetensors(path, {source_of("t", DType::F32, {1}, "abc")});
    });
    expect_error(kind, {"bytes written, 1 announced"}, [&] {
        write_safetensors(path, {source_of("t", DType::U8, {1}, "abc")});
    });
    expect_error(kind, {"t twice"}, [&] {
        write_safetensors(
            path, {source_of("t", DType::U8, {1}, "a"), source_of("t", DType::U8, {1}, "a")});
    });
    expect_error(kind, {"__metadata__"}, [&] {
        write_safetensors(path, {source_of("__metadata__", DType::U8, {1}, "a")});
    });
    expect_error(kind, {"extent -1"}, [&] {
        write_safetensors(path, {source_of("t", DType::U8, {-1}, "")});
    });
    expect_error(ErrorKind::Storage, {folder / "no/a", "No such file"}, [&] {
        write_safetensors(folder / "no/a", {});
    });
    expect_error(ErrorKind::Storage, {"/dev/full", "No space left", "bytes free"}, [&] {
        write_safetensors("/dev/full", {source_of("t", DType::U8, {1}, "a")});
    });
}

TEST_SUITE_END();

TEST_SUITE_BEGIN("io.safetensors_folder");

TEST_CASE("a folder with one file is read") {
    const TempFolder folder;
    write_safetensors(folder / "model.safetensors",
                      {source_of("b", DType::U8, {1}, "b"), source_of("a", DType::U8, {1}, "a")});
    const SafetensorsFolder model(folder.path());
    CHECK(model.folder() == folder.path());
    CHECK(model.names() == std::vector<std::string>{"a", "b"});
    CHECK(text_of(*model.find("b")) == "b");
    CHECK(model.find("c") == nullptr);
    CHECK(model.file_of("a") == folder / "model.safetensors");
    CHECK(model.file_of("c") == folder.path());
}

/// Two shards: a and b in 1, c in 2.
void write_shards(const TempFolder& folder) {
    write_safetensors(folder / "model-1.safetensors",
                      {source_of("a", DType::U8, {2}, "aa"), source_of("b", DType::U8, {1}, "b")});
    write_safetensors(folder / "model-2.safetensors", {source_of("c", DType::U8, {1}, "c")});
}

void write_index(const TempFolder& folder, std::string_view total, std::string_view map) {
    test::write_text(
        folder / "model.safetensors.index.json",
        fmt::format(R"({{"metadata": {{"total_size": {}}}, "weight_map": {}}})", total, map));
}

constexpr std::string_view kMap =
    R"({"a": "model-1.safetensors", "b": "model-1.safetensors", "c": "model-2.safetensors"})";

TEST_CASE("shards are read through their index") {
    const TempFolder folder;
    write_shards(folder);
    for (const char* total : {"4", "4.0", "null"}) {
        CAPTURE(total);
        write_index(folder, total, kMap);
        const test::CaughtLog log;
        const SafetensorsFolder model(folder.path());
        CHECK(model.names() == std::vector<std::string>{"a", "b", "c"});
        CHECK(text_of(*model.find("a")) == "aa");
        CHECK(text_of(*model.find("c")) == "c");
        CHECK(model.file_of("c") == folder / "model-2.safetensors");
        CHECK(log.warnings().empty());
    }
}

TEST_CASE("differences that do no harm are warnings with figures") {
    const TempFolder folder;
    write_shards(folder);
    {
        write_index(folder, "5", kMap);
        const test::CaughtLog log;
        const SafetensorsFolder model(folder.path());
        CHECK(log.warned("total_size is 5, the listed tensors have 4 bytes"));
    }
    {
        write_index(folder, "\"big\"", kMap);
        const test::CaughtLog log;
        const SafetensorsFolder model(folder.path());
        CHECK(log.warned("total_size is text"));
    }
    {
        write_index(folder, "3", R"({"a": "model-1.safetensors", "c": "model-2.safetensors"})");
        const test::CaughtLog log;
        const SafetensorsFolder model(folder.path());
        CHECK(model.find("b") == nullptr);
        CHECK(log.warned("1 tensors of the shards are not listed there and are not read: \"b\""));
    }
    {
        write_safetensors(folder / "model.safetensors", {source_of("x", DType::U8, {1}, "x")});
        const test::CaughtLog log;
        const SafetensorsFolder model(folder.path());
        CHECK(model.names() == std::vector<std::string>{"x"});
        CHECK(log.warned("there is also an index"));
    }
}

TEST_CASE("an index that does not fit its shards is refused") {
    struct Case {
        std::string_view map;
        std::vector<std::string_view> message;
    };

    const Case cases[] = {
        {"[]", {"weight_map: got a list"}},
        {R"({"a": 1})", {"weight_map: \"a\": got \"1\""}},
        {R"({"a": ""})", {"expected the name of a file in the folder"}},
        {R"({"a": "/etc/passwd"})", {"expected the name of a file in the folder"}},
        {R"({"a": "x/../../y"})", {"expected the name of a file in the folder"}},
        {R"({"a": "model-1.safetensors", "a": "model-1.safetensors"})", {"\"a\" stands twice"}},
        {R"({"a": "model-1.safetensors", "c": "model-3.safetensors", "d": "model-4.safetensors"})",
         {"2 of 3 shards are not there: model-3.safetensors, model-4.safetensors", "again"}},
        {R"({"a": "model-1.safetensors", "c": "model-1.safetensors", "x": "model-2.safetensors"})",
         {"\"c\" is not in model-1.safetensors", "but in ", "model-2.safetensors"}},
        {R"({"a": "model-1.safetensors", "d": "model-2.safetensors"})",
         {"\"d\" is not in model-2.safetensors", "nor in another shard"}},
    };
    const TempFolder folder;
    write_shards(folder);
    for (const Case& c : cases) {
        CAPTURE(c.map);
        write_index(folder, "4", c.map);
        const std::string message =
            expect_error(ErrorKind::Data, {folder / "model.safetensors.index.json"}, [&] {
                const SafetensorsFolder model(folder.path());
            });
        for (const std::string_view part : c.message) {
            CAPTURE(message);
            CAPTURE(part);
            CHECK(message.find(part) != std::string::npos);
        }
    }
    test::write_text(folder / "model.safetensors.index.json", "{}");
    expect_error(ErrorKind::Data, {"weight_map: got nothing"}, [&] {
        const SafetensorsFolder model(folder.path());
    });
    test::write_text(folder / "model.safetensors.index.json", "{");
    expect_error(ErrorKind::Config, {"index.json:1:2"}, [&] {
        const SafetensorsFolder model(folder.path());
    });
}

TEST_CASE("a folder without weights is a configuration error") {
    const TempFolder folder;
    expect_error(ErrorKind::Config,
                 {"expected model.safetensors or model.safetensors.index.json", folder.path()},
                 [&] { const SafetensorsFolder model(folder.path()); });
    expect_error(
        ErrorKind::Config, {"no weights"}, [&] { const SafetensorsFolder model(folder / "none"); });
}

TEST_SUITE_END();

}  // namespace
}  // namespace dflash::io
