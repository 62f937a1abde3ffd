// SPDX-License-Identifier: Apache-2.0
#include <dflash/io/event_file.hpp>

#include <array>
#include <bit>
#include <utility>

namespace dflash::io {
namespace {

constexpr std::array<std::uint32_t, 256> make_crc_table() {
    // Castagnoli's polynomial 0x1EDC6F41, bits reversed (RFC 3720, appendix B.4).
    constexpr std::uint32_t kPolynomial = 0x82F63B78;
    std::array<std::uint32_t, 256> table{};
    for (std::uint32_t byte = 0; byte < 256; ++byte) {
        std::uint32_t crc = byte;
        for (int bit = 0; bit < 8; ++bit) {
            crc = (crc >> 1) ^ ((crc & 1) != 0 ? kPolynomial : 0);
        }
        table[byte] = crc;
    }
    return table;
}

constexpr std::array<std::uint32_t, 256> kCrcTable = make_crc_table();

template <class Integer>
void append_little_endian(std::string& out, Integer value) {
    for (std::size_t i = 0; i < sizeof value; ++i) {
        out += static_cast<char>(value >> (8 * i) & 0xFF);
    }
}

/// The parts of protobuf's wire format that events need; a key is field number << 3 | wire type.
enum class WireType : std::uint32_t { Varint = 0, Fixed64 = 1, Bytes = 2, Fixed32 = 5 };

void append_varint(std::string& out, std::uint64_t value) {
    while (value >= 0x80) {
        out += static_cast<char>((value & 0x7F) | 0x80);
        value >>= 7;
    }
    out += static_cast<char>(value);
}

void append_key(std::string& out, std::uint32_t field, WireType type) {
    append_varint(out, field << 3 | static_cast<std::uint32_t>(type));
}

void append_bytes(std::string& out, std::uint32_t field, std::string_view bytes) {
    append_key(out, field, WireType::Bytes);
    append_varint(out, bytes.size());
    out += bytes;
}

void append_integer(std::string& out, std::uint32_t field, std::int64_t value) {
    if (value != 0) {  // the default is not written
        append_key(out, field, WireType::Varint);
        append_varint(out, static_cast<std::uint64_t>(value));
    }
}

/// Fields of Event: wall_time 1, step 2, file_version 3, summary 5, session_log 7.
std::string event_head(double wall_time_s, std::int64_t step) {
    std::string event;
    append_key(event, 1, WireType::Fixed64);
    append_little_endian(event, std::bit_cast<std::uint64_t>(wall_time_s));
    append_integer(event, 2, step);
    return event;
}

std::string record_of(const std::string& data) {
    std::string record;
    append_little_endian(record, static_cast<std::uint64_t>(data.size()));
    append_little_endian(record, masked_crc32c(record));
    record += data;
    append_little_endian(record, masked_crc32c(data));
    return record;
}

}  // namespace

std::uint32_t crc32c(std::string_view bytes) {
    std::uint32_t crc = 0xFFFFFFFF;
    for (const char c : bytes) {
        crc = (crc >> 8) ^ kCrcTable[(crc ^ static_cast<unsigned char>(c)) & 0xFF];
    }
    return ~crc;
}

std::uint32_t masked_crc32c(std::string_view bytes) {
    return std::rotr(crc32c(bytes), 15) + 0xA282EAD8;
}

std::string version_record(double wall_time_s) {
    std::string event = event_head(wall_time_s, 0);
    append_bytes(event, 3, "brain.Event:2");
    return record_of(event);
}

std::string scalars_record(double wall_time_s, std::int64_t step, std::span<const Scalar> scalars) {
    std::string summary;
    for (const Scalar& scalar : scalars) {
        std::string value;  // Summary.Value: tag 1, simple_value 2
        append_bytes(value, 1, scalar.tag);
        append_key(value, 2, WireType::Fixed32);
        append_little_endian(value, std::bit_cast<std::uint32_t>(static_cast<float>(scalar.value)));
        append_bytes(summary, 1, value);
    }
    std::string event = event_head(wall_time_s, step);
    append_bytes(event, 5, summary);
    return record_of(event);
}

std::string session_start_record(double wall_time_s, std::int64_t step) {
    std::string session_log;
    append_integer(session_log, 1, 1);  // status START
    std::string event = event_head(wall_time_s, step);
    append_bytes(event, 7, session_log);
    return record_of(event);
}

EventFile::EventFile(std::string path, double wall_time_s)
    : file_(std::move(path), OutputFile::Mode::CreateNew), pending_(version_record(wall_time_s)) {
    flush();
}

void EventFile::add_session_start(double wall_time_s, std::int64_t step) {
    pending_ += session_start_record(wall_time_s, step);
}

void EventFile::add_scalars(double wall_time_s,
                            std::int64_t step,
                            std::span<const Scalar> scalars) {
    pending_ += scalars_record(wall_time_s, step, scalars);
}

void EventFile::flush() {
    if (pending_.empty()) {
        return;
    }
    // Part of a record may stand in the file since a flush that failed.
    if (torn_) {
        file_.truncate(written_);
    }
    torn_ = true;
    file_.write(pending_);
    torn_ = false;
    written_ += static_cast<std::int64_t>(pending_.size());
    pending_.clear();
}

}  // namespace dflash::io
