// SPDX-License-Identifier: Apache-2.0
// Libraries that are looked for at run time.
#pragma once

#include <dflash/core/scope.hpp>

#include <string>
#include <vector>

namespace dflash::kernels {

/// The first of some libraries that can be opened. It stays open until the process ends: threads
/// and handlers that it has started must not lose their code.
class SharedLibrary : NonCopyable {
  public:
    explicit SharedLibrary(const std::vector<std::string>& names);

    bool is_open() const { return handle_ != nullptr; }

    /// What dlopen said, one line a name; only where none could be opened.
    const std::string& failure() const { return failure_; }

    /// Path of the file that was opened.
    const std::string& path() const { return path_; }

    /// First 16 digits of the file's GNU build id; "size-N" where it has none.
    const std::string& build() const { return build_; }

    /// Address of a function, or null.
    void* find(const char* name) const;

    /// The same with its type; throws Error{Device} naming library and function if it is missing.
    template <class Function>
    void load(const char* name, Function*& function) const {
        function = reinterpret_cast<Function*>(require(name));
    }

  private:
    void* require(const char* name) const;

    void* handle_ = nullptr;
    std::string failure_;
    std::string path_;
    std::string build_;
};

}  // namespace dflash::kernels
