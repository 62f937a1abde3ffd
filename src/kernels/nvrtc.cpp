// SPDX-License-Identifier: Apache-2.0
// Found by dlopen, with nothing but the types of its header: the ABI of these functions is the same
// in NVRTC 12 and 13, and a machine without it runs the program.
#include "nvrtc.hpp"

#include <dflash/core/check.hpp>

#include <atomic>
#include <fmt/format.h>

namespace dflash::kernels {
namespace {

std::atomic<std::int64_t> compilations = 0;

}  // namespace

bool Nvrtc::open() {
    std::call_once(once_, [this] { load(); });
    return shared_->is_open();
}

void Nvrtc::load() {
    shared_ = std::make_unique<SharedLibrary>(names_);
    if (!shared_->is_open()) {
        return;
    }
    decltype(nvrtcVersion)* get_version = nullptr;
    decltype(nvrtcGetNumSupportedArchs)* num_architectures = nullptr;
    decltype(nvrtcGetSupportedArchs)* get_architectures = nullptr;
    shared_->load("nvrtcVersion", get_version);
    shared_->load("nvrtcGetNumSupportedArchs", num_architectures);
    shared_->load("nvrtcGetSupportedArchs", get_architectures);
    shared_->load("nvrtcGetErrorString", error_string);
    shared_->load("nvrtcCreateProgram", create_program);
    shared_->load("nvrtcDestroyProgram", destroy_program);
    shared_->load("nvrtcCompileProgram", compile_program);
    shared_->load("nvrtcGetCUBINSize", cubin_size);
    shared_->load("nvrtcGetCUBIN", get_cubin);
    shared_->load("nvrtcGetProgramLogSize", log_size);
    shared_->load("nvrtcGetProgramLog", get_log);
    check(get_version(&major_, &minor_), "nvrtcVersion");
    int count = 0;
    check(num_architectures(&count), "nvrtcGetNumSupportedArchs");
    architectures_.resize(static_cast<std::size_t>(count));
    check(get_architectures(architectures_.data()), "nvrtcGetSupportedArchs");
    // The version has no patch level, and the compilers of two releases with one version differ.
    identity_ = fmt::format("{} {}", version(), shared_->build());
}

std::string Nvrtc::version() const {
    return "NVRTC " + version_number();
}

std::string Nvrtc::version_number() const {
    return fmt::format("{}.{}", major_, minor_);
}

void Nvrtc::check(nvrtcResult result, const char* call) const {
    DFLASH_CHECK(result == NVRTC_SUCCESS, "{} failed: {}", call, error_string(result));
}

NvrtcProgram::NvrtcProgram(const Nvrtc& nvrtc, const SourceSet& sources, const std::string& name)
    : nvrtc_(nvrtc) {
    // The first is the source itself; the others it finds by name, in memory.
    const std::vector<std::string> files = sources.reachable(name);
    std::vector<const char*> names;
    std::vector<const char*> texts;
    for (std::size_t i = 1; i < files.size(); ++i) {
        names.push_back(files[i].c_str());
        texts.push_back(sources.find(files[i])->c_str());
    }
    nvrtc_.check(nvrtc_.create_program(&handle_,
                                       sources.find(name)->c_str(),
                                       name.c_str(),
                                       narrow<int>(names.size()),
                                       texts.data(),
                                       names.data()),
                 "nvrtcCreateProgram");
}

NvrtcProgram::~NvrtcProgram() {
    nvrtc_.destroy_program(&handle_);
}

nvrtcResult NvrtcProgram::compile(const std::vector<std::string>& options) {
    std::vector<const char*> pointers;
    pointers.reserve(options.size());
    for (const std::string& option : options) {
        pointers.push_back(option.c_str());
    }
    // Counted where it happens, so that nothing can compile without being seen by tests and by the
    // compile barrier's counters.
    compilations.fetch_add(1, std::memory_order_relaxed);
    return nvrtc_.compile_program(handle_, narrow<int>(pointers.size()), pointers.data());
}

std::string NvrtcProgram::log() const {
    std::size_t size = 0;
    nvrtc_.check(nvrtc_.log_size(handle_, &size), "nvrtcGetProgramLogSize");
    std::string text(size, '\0');
    nvrtc_.check(nvrtc_.get_log(handle_, text.data()), "nvrtcGetProgramLog");
    while (!text.empty() && (text.back() == '\0' || text.back() == '\n')) {
        text.pop_back();
    }
    return text;
}

std::string NvrtcProgram::cubin() const {
    std::size_t size = 0;
    nvrtc_.check(nvrtc_.cubin_size(handle_, &size), "nvrtcGetCUBINSize");
    std::string bytes(size, '\0');
    nvrtc_.check(nvrtc_.get_cubin(handle_, bytes.data()), "nvrtcGetCUBIN");
    return bytes;
}

std::int64_t NvrtcProgram::num_compilations() noexcept {
    return compilations.load(std::memory_order_relaxed);
}

}  // namespace dflash::kernels
