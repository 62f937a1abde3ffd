// SPDX-License-Identifier: Apache-2.0
// The text of the device sources: the files of src/kernels/cuda, embedded in the program. NVRTC
// finds includes among them in memory; no file is read at run time.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

namespace dflash::kernels {

/// Source files by name. Const members may be called from any thread.
class SourceSet {
  public:
    /// The files of src/kernels/cuda as they were when the program was built. For work on kernels,
    /// the environment variable DFLASH_KERNEL_DIR names a folder to read *.cu and *.cuh from
    /// instead, with a warning; throws Error{Config} if it holds none.
    static SourceSet embedded();

    /// Replaces or adds a file.
    void set(std::string name, std::string text) { files_[std::move(name)] = std::move(text); }

    /// The text of a file, or null.
    const std::string* find(const std::string& name) const;

    /// The file and all files that it includes with #include "...", directly or not, each once, in
    /// the order of their first mention. Lines that the preprocessor would skip count as well.
    /// Throws KernelError{Source} naming the file that is missing and the one that includes it.
    std::vector<std::string> reachable(const std::string& name) const;

    const std::map<std::string, std::string>& files() const { return files_; }

  private:
    std::map<std::string, std::string> files_;
};

}  // namespace dflash::kernels
