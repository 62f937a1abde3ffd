// SPDX-License-Identifier: Apache-2.0
// A folder that one process at a time may write to.
#pragma once

#include <dflash/core/scope.hpp>

#include <string>

namespace dflash::io {

/// Holds a folder for this process, as long as the object lives; nothing is written into it. The
/// lock ends with the process, however that ends, and does not keep anybody from reading.
///
/// File systems without locks (some network mounts) get a warning and no protection.
class FolderLock : NonCopyable {
  public:
    /// Waits up to half a second for one who only asks (is_held). Throws Error{Config} if another
    /// process, or another object of this one, holds the folder, with its id where the system tells
    /// it; Error{Storage} if it cannot be opened.
    explicit FolderLock(const std::string& folder);
    ~FolderLock();

    /// Whether somebody holds the folder. False where that cannot be found out.
    static bool is_held(const std::string& folder);

  private:
    int descriptor_ = -1;
};

}  // namespace dflash::io
