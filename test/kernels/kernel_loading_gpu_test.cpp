// SPDX-License-Identifier: Apache-2.0
// The compile barrier with a real driver: loading, launching, and what is counted after the seal.
#include "captured_log.hpp"
#include "scratch_folder.hpp"
#include "tiny_kernel.hpp"

#include <dflash/core/error.hpp>
#include <dflash/core/scope.hpp>
#include <dflash/gpu/check.hpp>
#include <dflash/gpu/stream.hpp>
#include <dflash/gpu/worker.hpp>
#include <dflash/kernels/compile_barrier.hpp>
#include <dflash/kernels/kernel_error.hpp>
#include <dflash/kernels/model_kernels.hpp>

#include <array>
#include <cstdint>
#include <cuda_runtime_api.h>
#include <doctest/doctest.h>
#include <fmt/format.h>
#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace dflash::kernels {
namespace {

/// Device memory of one test, on the current device.
class Integers : NonCopyable {
  public:
    explicit Integers(std::size_t count) {
        gpu::check(cudaMalloc(&data_, count * sizeof(std::int32_t)));
    }

    ~Integers() { gpu::report(cudaFree(data_)); }

    void* data() { return data_; }

    std::int32_t first(gpu::StreamView stream) {
        std::int32_t value = -1;
        gpu::check(
            cudaMemcpyAsync(&value, data_, sizeof(value), cudaMemcpyDeviceToHost, stream.handle()));
        stream.synchronize();
        return value;
    }

  private:
    void* data_ = nullptr;
};

/// Workers for logical devices, and what a barrier for them needs.
struct Run {
    explicit Run(const std::string& gpus) : driver(make_cuda_driver()) {
        for (const gpu::Device& device : gpu::parse_devices(gpus)) {
            participants.push_back({device, /*drafts=*/true});
            owners.push_back(std::make_unique<gpu::Worker>(device, first_error));
            workers.push_back(owners.back().get());
        }
    }

    std::unique_ptr<KernelDriver> driver;
    FirstError first_error;
    std::vector<Participant> participants;
    std::vector<gpu::Worker*> workers;
    std::vector<std::unique_ptr<gpu::Worker>> owners;
};

void launch_tiny(const LoadedKernel& kernel, void* out, gpu::StreamView stream) {
    std::array<void*, 1> arguments = {&out};
    launch(kernel, {}, arguments, stream);
}

BuiltKernel build_tiny(const Architecture& architecture, int dynamic_shared_bytes = 0) {
    KernelSpec spec = tiny_kernel(1);
    spec.dynamic_shared_bytes = dynamic_shared_bytes;
    const KernelBuilder builder(tiny_sources(), {.folder = ""});
    return builder.build({{spec, architecture}}).at(0);
}

KernelFault fault_of_load(const BuiltKernel& kernel) {
    Run run("0");
    try {
        run.workers[0]->call([&] { run.driver->load(kernel, run.participants[0].device); });
    } catch (const KernelError& error) {
        return error.fault();
    }
    FAIL("expected a KernelError");
    throw;
}

TEST_SUITE("kernels.kernel_loading") {
    TEST_CASE("start: three drafter threads on one GPU, 10,000 launches each, nothing is loaded") {
        const ScratchFolder folder;
        const CapturedLog log;
        const KernelBuilder builder(tiny_sources(), {.folder = folder.path()});
        Run run("0,0,0");
        CompileBarrier barrier(run.participants, builder, run.driver.get(), run.first_error);
        barrier.require("drafter", [](const Architecture&) { return tiny_kernels(3); });
        const std::int64_t before = Compiler::num_compilations();
        barrier.prepare(run.workers, [&](gpu::Worker& worker) {
            const gpu::Stream stream;
            Integers out(32);
            for (const KernelSpec& spec : tiny_kernels(3)) {
                launch_tiny(barrier.kernel(spec, worker.device()), out.data(), stream.view());
            }
            stream.view().synchronize();
        });
        barrier.seal();
        CHECK(Compiler::num_compilations() == before + 3);

        std::vector<std::int32_t> last(3);
        {
            std::vector<std::jthread> threads;
            for (std::size_t i = 0; i < 3; ++i) {
                threads.emplace_back([&, i] {
                    run.workers[i]->call([&] {
                        const gpu::Stream stream;
                        Integers out(32);
                        for (int call = 0; call < 10000; ++call) {
                            const KernelSpec spec = tiny_kernel((call + static_cast<int>(i)) % 3);
                            launch_tiny(barrier.kernel(spec, run.participants[i].device),
                                        out.data(),
                                        stream.view());
                        }
                        last[i] = out.first(stream.view());
                    });
                });
            }
        }
        for (std::size_t i = 0; i < 3; ++i) {
            CHECK(last[i] == static_cast<std::int32_t>((9999 + i) % 3));
        }
        barrier.check_steady();
        for (const CounterReading& reading : barrier.counters_after_seal()) {
            CAPTURE(reading.name);
            CHECK(reading.count == 0);
        }
    }

    TEST_CASE("load: is complete, so that a first launch may be captured into a graph") {
        const CapturedLog log;
        Run run("0");
        const BuiltKernel kernel =
            build_tiny(run.driver->architecture(run.participants[0].device), 64 * 1024);
        run.workers[0]->call([&] {
            void* function = run.driver->load(kernel, run.participants[0].device);
            const LoadedKernel loaded(kernel.request.spec, function, 0);
            const gpu::Stream stream;
            Integers out(32);
            gpu::check(cudaStreamBeginCapture(stream.view().handle(), cudaStreamCaptureModeGlobal));
            launch_tiny(loaded, out.data(), stream.view());
            cudaGraph_t graph = nullptr;
            gpu::check(cudaStreamEndCapture(stream.view().handle(), &graph));
            cudaGraphExec_t executable = nullptr;
            gpu::check(cudaGraphInstantiate(&executable, graph, 0));
            gpu::check(cudaGraphLaunch(executable, stream.view().handle()));
            CHECK(out.first(stream.view()) == 1);
            gpu::check(cudaGraphExecDestroy(executable));
            gpu::check(cudaGraphDestroy(graph));
        });
    }

    TEST_CASE("launch: a grid without blocks launches nothing; a kernel that is none is a bug") {
        const CapturedLog log;
        Run run("0");
        const BuiltKernel kernel = build_tiny(run.driver->architecture(run.participants[0].device));
        run.workers[0]->call([&] {
            const LoadedKernel loaded(
                kernel.request.spec, run.driver->load(kernel, run.participants[0].device), 0);
            const gpu::Stream stream;
            void* nowhere = nullptr;
            std::array<void*, 1> arguments = {&nowhere};
            launch(loaded, {.x = 0}, arguments, stream.view());
            launch(loaded, {.x = 1, .y = 0}, arguments, stream.view());
            stream.view().synchronize();
            CHECK_THROWS_AS(launch(LoadedKernel(), {}, arguments, stream.view()), Error);
            CHECK_THROWS_AS(launch(loaded, {}, arguments, gpu::StreamView()), Error);
            // More blocks than a grid may have in y.
            CHECK_THROWS_AS(launch(loaded, {.x = 1, .y = 70000}, arguments, stream.view()), Error);
        });
    }

    TEST_CASE("errors: a binary for another GPU, also one under a false name, and a damaged one") {
        const CapturedLog log;
        const Architecture own = Run("0").driver->architecture(gpu::parse_devices("0").at(0));
        const Architecture other = Architecture::parse(own.number() == 120 ? "sm_90a" : "sm_120a");
        BuiltKernel kernel = build_tiny(other);
        CHECK(fault_of_load(kernel) == KernelFault::WrongArchitecture);
        kernel.request.architecture = own;
        CHECK(fault_of_load(kernel) == KernelFault::WrongArchitecture);
        kernel.binary.cubin = std::string(1000, 'x');
        CHECK(fault_of_load(kernel) == KernelFault::WrongArchitecture);
    }

    TEST_CASE("errors: more shared memory than this GPU has") {
        const CapturedLog log;
        BuiltKernel kernel =
            build_tiny(Run("0").driver->architecture(gpu::parse_devices("0").at(0)));
        kernel.request.spec.dynamic_shared_bytes = 1 << 20;
        CHECK(fault_of_load(kernel) == KernelFault::SharedMemory);
    }

    TEST_CASE("time: the kernels of a run are compiled in 6 s on 16 processors, read in 0.3 s") {
        const ScratchFolder folder;
        const DrafterKernelShape shape = shipped_drafters().at(1).drafter;
        std::vector<double> seconds;
        for (const bool cold : {true, false}) {
            const CapturedLog log;
            const KernelBuilder builder(SourceSet::embedded(), {.folder = folder.path()});
            Run run("0");
            CompileBarrier barrier(run.participants, builder, run.driver.get(), run.first_error);
            barrier.require("drafter", [&](const Architecture& architecture) {
                return drafter_kernels(shape, architecture);
            });
            barrier.prepare(run.workers);
            barrier.seal();
            const StartupReport report = barrier.report();
            CHECK(report.num_of(cold ? KernelOrigin::Compiled : KernelOrigin::Cache) ==
                  static_cast<int>(report.kernels.size()));
            MESSAGE(report.to_lines().at(0));
            for (const KernelStart& kernel : report.kernels) {
                MESSAGE(fmt::format("{} {:.3f} s", kernel.kernel, kernel.seconds));
            }
            seconds.push_back(report.build_s + report.load_s);
        }
        CHECK(seconds[1] < 0.3);
        if (std::thread::hardware_concurrency() >= 16) {
            CHECK(seconds[0] < 6);
        }
    }
}

}  // namespace
}  // namespace dflash::kernels
