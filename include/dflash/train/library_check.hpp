// SPDX-License-Identifier: Apache-2.0
// Whether the libraries in this process fit the program. A foreign one that a polluted environment
// has slipped in fails in ways that nobody can read, hours later; so it is looked at first.
#pragma once

#include <dflash/io/json.hpp>

#include <optional>
#include <string>
#include <vector>

namespace dflash::train {

/// What may differ between the version of the build and the one that is loaded.
enum class VersionRule {
    /// Nothing: NCCL, whose choice of algorithms decides the bits of a sum.
    Same,
    /// The patch: LibTorch, whose C++ interface changes with every minor version.
    SameMinor,
    /// A newer minor version: CUDA's libraries, which only add to their interface within a major
    /// one.
    SameMajorNotOlder,
};

/// One library. Versions are numbers with dots; what follows a "+" or a space is not compared.
struct Library {
    std::string name;  ///< "cuBLASLt"
    VersionRule rule = VersionRule::Same;
    std::string built;
    std::string loaded;  ///< empty: not in this process
    std::string file;    ///< that it was loaded from; empty if that is not known
};

/// LibTorch, the CUDA runtime, NVRTC, cuBLASLt and NCCL. NVRTC is opened only if `with_gpu`.
std::vector<Library> loaded_libraries(bool with_gpu);

/// Whether the version that is loaded will do.
bool fits(const Library& library);

/// Throws Error{Device} naming every library that does not fit with both versions and its file, and
/// how to build against what is there. One that is not loaded does not matter.
void check_libraries(const std::vector<Library>& libraries);

/// {"LibTorch": {"built": "2.11.0", "loaded": "2.11.0", "file": ...}, ...} and the driver.
io::Json to_json(const std::vector<Library>& libraries);

/// Version of the NVIDIA driver ("580.65.06"), as its kernel module says; nothing without one.
std::optional<std::string> driver_version();

}  // namespace dflash::train
