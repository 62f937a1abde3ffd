// SPDX-License-Identifier: Apache-2.0
// Compilation of kernels by NVRTC, which is looked for when the first kernel is compiled: the
// program starts without it.
#pragma once

#include <dflash/kernels/architecture.hpp>
#include <dflash/kernels/device_source.hpp>
#include <dflash/kernels/kernel_spec.hpp>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace dflash::kernels {

class Nvrtc;

/// What a kernel needs, as ptxas reports it.
struct KernelResources {
    int registers = 0;            ///< per thread
    int stack_bytes = 0;          ///< per thread
    int spill_store_bytes = 0;    ///< static count, all functions of the program together
    int spill_load_bytes = 0;     ///< the same
    int static_shared_bytes = 0;  ///< per block, without the dynamic part

    bool operator==(const KernelResources&) const = default;
};

/// A kernel as machine code of one architecture.
struct KernelBinary {
    std::string cubin;
    KernelResources resources;
    std::string compiler;  ///< Compiler::identity() of the one that made it
    double compile_s = 0;  ///< what making it took
    std::string log{};     ///< of the compiler; empty where it comes from a file
};

/// One NVRTC in this process. All members may be called from any thread; compilations run in
/// parallel.
class Compiler {
  public:
    /// Names to try in this order, as dlopen takes them.
    static std::vector<std::string> default_libraries();

    explicit Compiler(SourceSet sources, std::vector<std::string> libraries = default_libraries());
    ~Compiler();
    Compiler(const Compiler&) = delete;
    Compiler& operator=(const Compiler&) = delete;

    const SourceSet& sources() const { return sources_; }

    /// "NVRTC 13.0 65be0db342ad51a0": version and build of the library (its build id, or its size
    /// where it has none); empty where there is no NVRTC. Opens the library.
    std::optional<std::string> identity() const;

    /// Throws KernelError{NoCompiler} where there is no NVRTC; `where` goes into it.
    void require(const std::string& where) const;

    /// Compiles one kernel to a cubin of exactly that architecture. Throws KernelError: NoCompiler,
    /// CompilerTooOld, Source (with the whole log), Spill, SharedMemory.
    KernelBinary compile(const KernelSpec& spec, const Architecture& architecture) const;

    /// Options of a compilation that decide its result, in order; without what only changes how it
    /// is run.
    static std::vector<std::string> options(const KernelSpec& spec,
                                            const Architecture& architecture);

    /// Programs that this process has handed to NVRTC so far, by all compilers.
    static std::int64_t num_compilations() noexcept;

  private:
    SourceSet sources_;
    std::unique_ptr<Nvrtc> nvrtc_;
};

/// Throws KernelError{Spill} for spills that `spec` does not allow on this architecture, and
/// KernelError{SharedMemory} if a block needs more than the architecture has; `log` goes into the
/// message.
void check_resources(const KernelSpec& spec,
                     const Architecture& architecture,
                     const KernelResources& resources,
                     const std::string& log);

}  // namespace dflash::kernels
