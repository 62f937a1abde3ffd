// SPDX-License-Identifier: Apache-2.0
// TensorBoard's event files: records of TFRecord framing, each holding one Event message.
//
// Framing: u64 length, u32 masked CRC-32C of the length, data, u32 masked CRC-32C of the data, all
// little-endian (tensorboard: tensorboard/summary/writer/record_writer.py); messages:
// tensorboard/compat/proto/{event,summary}.proto.
#pragma once

#include <dflash/io/output_file.hpp>

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace dflash::io {

/// One named number of a step.
struct Scalar {
    std::string tag;   ///< "train/loss": TensorBoard groups by the part before "/"
    double value = 0;  ///< stored as a 32-bit float
};

/// CRC-32C (Castagnoli) of bytes, and the masked form that records carry.
std::uint32_t crc32c(std::string_view bytes);
std::uint32_t masked_crc32c(std::string_view bytes);

/// A whole record (framing included) of one event. `wall_time_s` is in seconds since 1970.
std::string version_record(double wall_time_s);  ///< first of a file: "brain.Event:2"
std::string scalars_record(double wall_time_s, std::int64_t step, std::span<const Scalar> scalars);

/// A session that starts at `step`: readers drop points of that step and later that came before.
std::string session_start_record(double wall_time_s, std::int64_t step);

/// A new event file with records appended in memory and written by flush(). Not thread-safe.
class EventFile {
  public:
    /// Creates the file, which must not exist, with its version record. Throws Error{Storage}.
    EventFile(std::string path, double wall_time_s);

    void add_session_start(double wall_time_s, std::int64_t step);
    void add_scalars(double wall_time_s, std::int64_t step, std::span<const Scalar> scalars);

    /// Hands what was added to the system in one write. Throws Error{Storage}; the records stay,
    /// and the next flush writes them all, at the place where they belong.
    void flush();

    /// Bytes that wait for flush().
    std::size_t pending_bytes() const { return pending_.size(); }

    const std::string& path() const { return file_.path(); }

  private:
    OutputFile file_;
    std::int64_t written_ = 0;  // bytes of whole records in the file
    std::string pending_;
    bool torn_ = false;  // the last write failed and may have left a part of itself
};

}  // namespace dflash::io
