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
    /// Throws Error{Config} if another process, or another object of this one, holds the folder;
    /// Error{Storage} if it cannot be opened.
    explicit FolderLock(const std::string& folder);
    ~FolderLock();

  private:
    int descriptor_ = -1;
};

}  // namespace dflash::io
