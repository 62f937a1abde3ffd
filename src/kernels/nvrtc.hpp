// SPDX-License-Identifier: Apache-2.0
// NVRTC as a library that may be missing.
#pragma once

#include "shared_library.hpp"

#include <dflash/core/scope.hpp>
#include <dflash/kernels/device_source.hpp>

#include <memory>
#include <mutex>
#include <nvrtc.h>
#include <string>
#include <vector>

namespace dflash::kernels {

/// NVRTC's functions; the library is opened once, when open() is called first. Any thread.
class Nvrtc : NonCopyable {
  public:
    explicit Nvrtc(std::vector<std::string> names) : names_(std::move(names)) {}

    /// False where there is no NVRTC; nothing else may be called then but failure().
    bool open();

    const std::string& failure() const { return shared_->failure(); }

    std::string version() const;         ///< "NVRTC 13.0"
    std::string version_number() const;  ///< "13.0"

    /// Path of the library that was opened.
    const std::string& path() const { return shared_->path(); }

    const std::string& identity() const { return identity_; }

    /// Numbers of the architectures it compiles for: 80, 90, 120, ...
    const std::vector<int>& architectures() const { return architectures_; }

    /// Whether it keeps a cache of results itself (since 12.9). Its answers from there come without
    /// the log of ptxas.
    bool has_cache() const { return major_ > 12 || (major_ == 12 && minor_ >= 9); }

    /// Throws an internal error unless the call succeeded.
    void check(nvrtcResult result, const char* call) const;

    decltype(nvrtcGetErrorString)* error_string = nullptr;
    decltype(nvrtcCreateProgram)* create_program = nullptr;
    decltype(nvrtcDestroyProgram)* destroy_program = nullptr;
    decltype(nvrtcCompileProgram)* compile_program = nullptr;
    decltype(nvrtcGetCUBINSize)* cubin_size = nullptr;
    decltype(nvrtcGetCUBIN)* get_cubin = nullptr;
    decltype(nvrtcGetProgramLogSize)* log_size = nullptr;
    decltype(nvrtcGetProgramLog)* get_log = nullptr;

  private:
    void load();

    std::vector<std::string> names_;
    std::once_flag once_;
    std::unique_ptr<SharedLibrary> shared_;
    int major_ = 0;
    int minor_ = 0;
    std::vector<int> architectures_;
    std::string identity_;
};

/// One program: a source file and what it includes. One thread at a time.
class NvrtcProgram : NonCopyable {
  public:
    NvrtcProgram(const Nvrtc& nvrtc, const SourceSet& sources, const std::string& name);
    ~NvrtcProgram();

    /// Counted in num_compilations().
    nvrtcResult compile(const std::vector<std::string>& options);

    /// Without blank lines at its end.
    std::string log() const;
    std::string cubin() const;

    /// Calls of compile() in this process.
    static std::int64_t num_compilations() noexcept;

  private:
    const Nvrtc& nvrtc_;
    nvrtcProgram handle_ = nullptr;
};

}  // namespace dflash::kernels
