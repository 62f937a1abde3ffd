// SPDX-License-Identifier: Apache-2.0
// The files of one checkpoint folder: draft, state, acceptance, and the checksums of them all.
#pragma once

#include <dflash/train/checkpoint.hpp>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

namespace dflash::train {

/// Of state.json: rises when older programs could misread it.
inline constexpr std::int64_t kFormatVersion = 1;

/// The list of checksums in a checkpoint's folder.
inline constexpr const char* kChecksumFile = "checksums.xxh64";

/// Bytes of a checkpoint with that many parameters, and a little more.
std::int64_t checkpoint_bytes(std::int64_t num_parameters);

/// Writes all files into `folder`, which it creates, each synchronised. `between` is called every
/// few MiB. Returns their bytes. Throws Error{Storage}.
std::int64_t write_checkpoint_files(const std::string& folder,
                                    const Checkpoint& checkpoint,
                                    std::optional<double> acceptance,
                                    const std::function<void()>& between);

/// Reads all files back from the disk and compares them with their checksums. Throws
/// Error{Storage}.
void read_back(const std::string& folder, const std::function<void()>& between);

/// Thrown by read_checkpoint_files: not damaged, but nothing for this program.
struct OtherVersion {
    std::int64_t version;
};

/// Reads a folder that is to hold the checkpoint of `step`. Throws an Error for what is damaged.
Checkpoint read_checkpoint_files(const std::string& folder, std::int64_t step);

/// Acceptance of a saved draft, kept beside it for retention; nothing if it was never evaluated.
std::optional<double> read_acceptance(const std::string& folder);

/// Adds it to a folder that was saved without. Throws Error{Storage}.
void add_acceptance(const std::string& folder, double acceptance);

/// Makes the folder of a whole checkpoint that of a draft. Throws Error{Storage}.
void remove_state(const std::string& folder);

/// As the functions of std::filesystem, but throw Error{Storage}.
void rename_path(const std::string& from, const std::string& to);
void remove_tree(const std::string& path);

}  // namespace dflash::train
