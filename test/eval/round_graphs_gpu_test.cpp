// SPDX-License-Identifier: Apache-2.0
// Rounds that are replayed from CUDA graphs beside rounds that are launched one by one.
#include "../golden_check/decode_case.hpp"
#include "../golden_check/gpu_kernels.hpp"

#include <dflash/eval/drafter_source.hpp>
#include <dflash/eval/greedy_check.hpp>
#include <dflash/eval/prompt_lookup.hpp>
#include <dflash/gpu/device.hpp>
#include <dflash/tensor/kernel_row_ops.hpp>

#include <array>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAStream.h>
#include <doctest/doctest.h>
#include <string>

namespace dflash::eval {
namespace {

const at::Device kDevice(at::kCUDA, 0);

/// The worker of one GPU: a stream of its own, which a capture needs, and kernels.
struct Bench {
    gpu::Device device = gpu::parse_devices("0").front();
    golden::GpuKernels kernels{device};
    golden::DecodeCase half;

    explicit Bench(const std::string& name)
        : half("test/golden/inference/" + name, on_own_stream(), at::kBFloat16, [this] {
              return std::make_shared<tensor::KernelRowOps>(
                  kDevice, [this](const kernels::KernelSpec& spec) { return kernels.find(spec); });
          }) {}

    static at::Device on_own_stream() {
        c10::cuda::setCurrentCUDAStream(c10::cuda::getStreamFromPool(/*isHighPriority=*/false, 0));
        return kDevice;
    }

    std::vector<DecodeTask> tasks(std::int64_t max_new_tokens) const {
        std::vector<DecodeTask> tasks;
        for (const golden::ExpectedRun& run : half.runs) {
            // Lengths of their own, so that slots are left and entered at different times.
            tasks.push_back(
                {std::ssize(tasks), run.prompt, max_new_tokens - 3 * std::ssize(tasks)});
        }
        return tasks;
    }
};

struct Sources {
    DrafterSource drafter;
    PromptLookup lookup;
    NoDrafts none{};
    std::vector<DraftSource*> all{&drafter, &lookup, &none};

    explicit Sources(const Bench& bench)
        : drafter(*bench.half.drafter, bench.half.block_size), lookup(bench.half.block_size) {}
};

std::vector<std::vector<TokenId>> texts_of(const DecodeRun& run) {
    std::vector<std::vector<TokenId>> texts;
    for (const DecodedText& text : run.texts) {
        texts.push_back(text.emitted);
    }
    return texts;
}

std::int64_t device_allocations() {
    const auto stats = c10::cuda::CUDACachingAllocator::getDeviceStats(0);
    return stats.num_device_alloc + stats.num_device_free;
}

TEST_SUITE("eval.round_graphs_gpu") {
    TEST_CASE("graphs of rounds give the bits that launches of the same shapes give") {
        for (const char* name : {"full", "sliding"}) {
            CAPTURE(name);
            const Bench bench(name);
            const auto tasks = bench.tasks(36);
            const std::int64_t capacity = slot_capacity(tasks, {}, bench.half.block_size);
            // Rounds of three of the five slots take the graph of four, with nobody beside them.
            RoundDecoder eager(*bench.half.target, 5, capacity);
            RoundDecoder graphs(*bench.half.target, 5, capacity);
            Sources launched(bench);
            Sources replayed(bench);
            for (std::size_t i = 0; i < launched.all.size(); ++i) {
                eager.prepare(*launched.all[i], RoundShapes::Fixed);
                graphs.prepare(*replayed.all[i], RoundShapes::Graphs);
            }

            // Every round waits, which takes long where others use the GPU, too.
            struct Way {
                double temperature;
                std::int64_t slots;
            };

            for (const Way& way : std::to_array<Way>({{0.0, 5}, {0.0, 1}, {0.8, 5}, {0.8, 3}})) {
                for (std::size_t i = 0; i < launched.all.size(); ++i) {
                    CAPTURE(way.temperature);
                    CAPTURE(way.slots);
                    CAPTURE(i);
                    const DecodeOptions options{
                        .rule = {{.temperature = way.temperature, .top_p = 0.95}, /*seed=*/3},
                        .slots = way.slots};
                    const DecodeRun expected = eager.decode(*launched.all[i], tasks, options);
                    const DecodeRun run = graphs.decode(*replayed.all[i], tasks, options);
                    CHECK(texts_of(run) == texts_of(expected));
                    CHECK(run.target_calls() == expected.target_calls());
                    CHECK(run.target_calls() > 40);
                }
            }
        }
    }

    TEST_CASE("text from graphs is that of plain decoding, up to ties, whatever drafts") {
        for (const char* name : {"full", "sliding"}) {
            CAPTURE(name);
            const Bench bench(name);
            const auto tasks = bench.tasks(48);
            NoDrafts none;
            const DecodeRun plain = decode(*bench.half.target, none, tasks, {.slots = 1});
            RoundDecoder graphs(
                *bench.half.target, 5, slot_capacity(tasks, {}, bench.half.block_size));
            Sources sources(bench);
            for (DraftSource* source : sources.all) {
                graphs.prepare(*source, RoundShapes::Graphs);
                const DecodeRun run = graphs.decode(*source, tasks, {.slots = 5});
                const GreedyComparison compared =
                    compare_greedy(plain.texts, run.texts, at::kBFloat16, [](std::int64_t id) {
                        return std::to_string(id);
                    });
                CHECK(compared.texts == std::ssize(tasks));
                CHECK(compared.tokens > 40);
            }
        }
    }

    TEST_CASE("decoding the same again allocates nothing") {
        const Bench bench("full");
        const auto tasks = bench.tasks(48);
        DrafterSource drafter(*bench.half.drafter, bench.half.block_size);
        RoundDecoder graphs(*bench.half.target, 4, slot_capacity(tasks, {}, bench.half.block_size));
        graphs.prepare(drafter, RoundShapes::Graphs);
        graphs.decode(drafter, tasks, {.slots = 4});
        const std::int64_t before = device_allocations();
        graphs.decode(drafter, tasks, {.slots = 4});
        CHECK(device_allocations() == before);
    }
}

}  // namespace
}  // namespace dflash::eval
