// SPDX-License-Identifier: Apache-2.0
#include "cuda/attention_arguments.cuh"

#include <dflash/core/check.hpp>
#include <dflash/kernels/attention.hpp>

#include <algorithm>
#include <cstddef>
#include <limits>
#include <type_traits>

namespace dflash::kernels {
namespace {

static_assert(sizeof(QueryTask) == sizeof(AttentionQueryTask) && sizeof(QueryTask) == 16);
static_assert(offsetof(QueryTask, key_end) == offsetof(AttentionQueryTask, key_end));
static_assert(sizeof(KeyTask) == sizeof(AttentionKeyTask) && sizeof(KeyTask) == 20);
static_assert(offsetof(KeyTask, block_end) == offsetof(AttentionKeyTask, block_end));
static_assert(sizeof(RowTerms) == 16);

constexpr int kWarpSize = 32;
constexpr int kQueryGradientKeys = 32;
constexpr int kRowTermsThreads = 256;
constexpr int kRowTermsPerLane = 4;

using Constants = std::vector<std::pair<std::string, std::int64_t>>;

Constants shape_constants(const AttentionShape& shape) {
    return {{"HEAD_DIM", shape.head_dim},
            {"GROUP", shape.group},
            {"BLOCK", shape.block_size},
            {"CAUSAL", shape.causal ? 1 : 0},
            {"WINDOWED", shape.windowed ? 1 : 0}};
}

/// Where the own block's keys play no part, layers that differ in them share a kernel.
AttentionShape without_causal(AttentionShape shape) {
    shape.causal = false;
    return shape;
}

AttentionShape without_mask(AttentionShape shape) {
    shape.windowed = false;
    return without_causal(shape);
}

/// Whether two CTAs with that much shared memory fit into a multiprocessor, which has 1 KiB more
/// than a CTA may use, and keeps 1 KiB for each (CUDA C++ programming guide, shared memory).
bool fits_twice(const Architecture& architecture, int bytes) {
    constexpr int kKiB = 1024;
    return 2 * (bytes + kKiB) <= architecture.max_shared_bytes() + kKiB;
}

/// Tiles of 16 rows, or of 16 keys, of a warp. Two of them halve the reads of shared memory, but
/// need all registers, so that four warps are what two CTAs can have each; where only one CTA fits
/// eight warps with one tile hide latency better. At head size 256 the sums of two do not fit.
int tiles_of_warp(const AttentionShape& shape, const Architecture& architecture, int bytes) {
    return shape.head_dim < 256 && fits_twice(architecture, bytes) ? 2 : 1;
}

KernelSpec forward_kernel(const AttentionShape& shape, const Architecture& architecture) {
    const int rows = attention_task_sizes(shape).forward_rows;
    const int row_bytes = 2 * shape.head_dim;
    const auto shared_bytes = [&](int tile_rows) { return tile_rows * row_bytes + rows * 8; };
    // As many keys as fit beside the sums of two tiles of rows; from sm_100 on ptxas needs more
    // registers for the same.
    int keys = shape.head_dim < 128 ? 64 : architecture.number() >= 100 ? 32 : 48;
    int tile_rows = rows + 4 * keys;
    const int row_tiles = tiles_of_warp(shape, architecture, shared_bytes(tile_rows));
    const bool query_in_registers = row_tiles == 1;
    if (query_in_registers) {
        keys = shape.head_dim < 256 ? 64 : 32;
        tile_rows = std::max(rows, 4 * keys);
    }
    KernelSpec spec;
    spec.source = "attention_forward.cu";
    spec.entry = "attention_forward";
    spec.constants = shape_constants(shape);
    spec.constants.insert(spec.constants.end(),
                          {{"ROW_TILES", row_tiles},
                           {"KEYS", keys},
                           {"QUERY_IN_REGISTERS", query_in_registers ? 1 : 0}});
    spec.threads = rows / (16 * row_tiles) * kWarpSize;
    spec.dynamic_shared_bytes = shared_bytes(tile_rows);
    spec.min_blocks_per_sm = row_tiles;
    return spec;
}

KernelSpec row_terms_kernel(const AttentionShape& shape) {
    KernelSpec spec;
    spec.source = "attention_row_terms.cu";
    spec.entry = "attention_row_terms";
    spec.constants = shape_constants(without_mask(shape));
    spec.constants.emplace_back("ROWS_PER_LANE", kRowTermsPerLane);
    spec.threads = kRowTermsThreads;
    return spec;
}

KernelSpec context_gradient_kernel(const AttentionShape& shape, const Architecture& architecture) {
    const int keys = attention_task_sizes(shape).context_gradient_keys;
    const int rows = shape.head_dim == 256 ? 16 : 32;
    const int stages = 4;
    const int ring_bytes = stages * 2 * rows * 2 * shape.head_dim;
    const int mail_bytes = 2 * keys * rows * 4;
    const int terms_bytes = stages * rows * static_cast<int>(sizeof(RowTerms));
    const int bytes = ring_bytes + mail_bytes + terms_bytes;
    const int key_tiles = tiles_of_warp(shape, architecture, bytes);
    const int pairs = keys / (16 * key_tiles);
    KernelSpec spec;
    spec.source = "attention_backward_context.cu";
    spec.entry = "attention_backward_context";
    spec.constants = shape_constants(without_causal(shape));
    spec.constants.insert(spec.constants.end(),
                          {{"KEY_TILES", key_tiles},
                           {"PAIRS", pairs},
                           {"ROWS", rows},
                           {"STAGES", stages},
                           {"UNROLL", rows / 16}});
    spec.threads = 2 * pairs * kWarpSize;
    spec.dynamic_shared_bytes = bytes;
    spec.min_blocks_per_sm = key_tiles;
    return spec;
}

KernelSpec query_gradient_kernel(const AttentionShape& shape, const Architecture& architecture) {
    const int rows = attention_task_sizes(shape).query_gradient_rows;
    const int stages = shape.head_dim == 256 ? 1 : 2;
    const int row_bytes = 2 * shape.head_dim;
    const int stage_bytes = 2 * kQueryGradientKeys * row_bytes;
    const int weight_bytes = 2 * rows * kQueryGradientKeys * 2;
    const bool weights_in_ring = weight_bytes <= (stages > 1 ? stage_bytes : stage_bytes / 2);
    const int bytes = 2 * rows * row_bytes + stages * stage_bytes +
                      rows * static_cast<int>(sizeof(RowTerms)) +
                      (weights_in_ring ? 0 : weight_bytes);
    const int row_tiles = tiles_of_warp(shape, architecture, bytes);
    KernelSpec spec;
    spec.source = "attention_backward_query.cu";
    spec.entry = "attention_backward_query";
    spec.constants = shape_constants(shape);
    spec.constants.insert(
        spec.constants.end(),
        {{"ROW_TILES", row_tiles}, {"KEYS", kQueryGradientKeys}, {"STAGES", stages}});
    spec.threads = rows / (16 * row_tiles) * kWarpSize;
    spec.dynamic_shared_bytes = bytes;
    spec.min_blocks_per_sm = spec.threads > 128 ? 1 : 2;
    return spec;
}

/// For tensors of which no tile is copied.
constexpr std::int64_t kNotCopied = 0;

/// Tokens between two rows that a thread copies to a tile of keys, or of (token, head) rows.
struct CopySteps {
    std::int64_t of_keys = 0;
    std::int64_t of_rows = 0;

    CopySteps(const LoadedKernel& kernel, const AttentionShape& shape) {
        DFLASH_CHECK(kernel, "an attention kernel is launched that was not loaded");
        of_keys = kernel.spec().threads / (shape.head_dim / 8);
        of_rows = of_keys / shape.group;
    }
};

HeadRows rows_of(const HeadTensor& tensor, const char* name, std::int64_t step = kNotCopied) {
    const bool aligned = reinterpret_cast<std::uintptr_t>(tensor.data) % 16 == 0 &&
                         tensor.token_stride % 8 == 0 && tensor.head_stride % 8 == 0;
    DFLASH_CHECK(tensor.data != nullptr && aligned,
                 "attention: {} at {}, strides {} and {}; 16-byte alignment expected",
                 name,
                 tensor.data,
                 tensor.token_stride,
                 tensor.head_stride);
    return {tensor.data, tensor.token_stride, tensor.head_stride, 2 * step * tensor.token_stride};
}

void check_problem(const AttentionProblem& problem) {
    DFLASH_CHECK(problem.schedule != nullptr && problem.device_schedule != nullptr &&
                     problem.num_key_heads > 0,
                 "attention: {} key heads, no schedule, or none on the device",
                 problem.num_key_heads);
    DFLASH_CHECK((problem.window > 0) == problem.shape.windowed,
                 "attention: window {} for a shape {} window",
                 problem.window,
                 problem.shape.windowed ? "with" : "without");
}

int window_argument(const AttentionProblem& problem) {
    return static_cast<int>(
        std::min<std::int64_t>(problem.window, std::numeric_limits<int>::max() / 2));
}

/// The lists of AttentionSchedule::packed() on the device.
struct DeviceLists {
    const QueryTask* forward;
    const QueryTask* query_gradient;
    const KeyTask* context_gradient;

    explicit DeviceLists(const AttentionProblem& problem) {
        const AttentionSchedule& schedule = *problem.schedule;
        const auto aligned = [](std::size_t count) { return (count + 3) / 4 * 4; };
        const std::size_t first = aligned(schedule.anchors.size());
        const std::size_t second = first + 4 * schedule.forward.size();
        const std::size_t third = second + 4 * schedule.query_gradient.size();
        forward = reinterpret_cast<const QueryTask*>(problem.device_schedule + first);
        query_gradient = reinterpret_cast<const QueryTask*>(problem.device_schedule + second);
        context_gradient = reinterpret_cast<const KeyTask*>(problem.device_schedule + third);
    }
};

std::uint32_t grid_size(std::int64_t tasks, std::int64_t heads, std::int64_t parts) {
    const std::int64_t blocks = tasks * heads * parts;
    DFLASH_CHECK(blocks <= std::numeric_limits<std::int32_t>::max(), "{} blocks", blocks);
    return static_cast<std::uint32_t>(blocks);
}

/// CTAs of one query task and head: several where a block has more rows than one takes.
std::int64_t parts_of(const AttentionShape& shape, int rows) {
    return (shape.block_size * shape.group + rows - 1) / rows;
}

template <typename Arguments>
void launch_with(const LoadedKernel& kernel,
                 std::uint32_t blocks,
                 Arguments arguments,
                 gpu::StreamView stream) {
    static_assert(std::is_trivially_copyable_v<Arguments>);
    void* const pointers[] = {&arguments};
    launch(kernel, Dim3{blocks, 1, 1}, pointers, stream);
}

}  // namespace

std::vector<KernelSpec> attention_kernels(const AttentionShape& shape,
                                          const Architecture& architecture) {
    std::vector<KernelSpec> kernels = {forward_kernel(shape, architecture),
                                       row_terms_kernel(shape),
                                       context_gradient_kernel(shape, architecture),
                                       query_gradient_kernel(shape, architecture)};
    // With heads of 128 and more, two tiles a warp fill all registers, and ptxas keeps some of what
    // is needed once a tile in local memory: a few loads for hundreds of products. Unrolled less
    // there is no spill, and the kernels were up to 5 % slower on an H200.
    if (shape.head_dim >= 128) {
        for (const std::size_t products : {std::size_t{0}, std::size_t{2}, std::size_t{3}}) {
            kernels[products].allowed_spills.push_back(
                {architecture.name(), 128, "addresses and bounds that are read once a tile"});
        }
    }
    return kernels;
}

std::int64_t attention_row_terms_bytes(std::int64_t num_tokens, std::int64_t num_query_heads) {
    return num_tokens * num_query_heads * static_cast<std::int64_t>(sizeof(RowTerms));
}

void attention_forward(const AttentionKernels& kernels,
                       const AttentionProblem& problem,
                       const AttentionInputTensors& in,
                       const AttentionResultTensors& out,
                       gpu::StreamView stream) {
    check_problem(problem);
    const CopySteps steps(kernels.forward, problem.shape);
    const AttentionSchedule& schedule = *problem.schedule;
    const int rows = attention_task_sizes(problem.shape).forward_rows;
    launch_with(
        kernels.forward,
        grid_size(static_cast<std::int64_t>(schedule.forward.size()),
                  problem.num_key_heads,
                  parts_of(problem.shape, rows)),
        ForwardArguments{.q = rows_of(in.q, "q", steps.of_rows),
                         .k_context = rows_of(in.k_context, "k of the context", steps.of_keys),
                         .v_context = rows_of(in.v_context, "v of the context", steps.of_keys),
                         .k_block = rows_of(in.k_block, "k of the blocks", steps.of_keys),
                         .v_block = rows_of(in.v_block, "v of the blocks", steps.of_keys),
                         .o = rows_of(out.o, "o"),
                         .o_rest = rows_of(out.o_rest, "rest of o"),
                         .lse_MQ = out.lse_MQ,
                         .anchors_N = problem.device_schedule,
                         .tasks = DeviceLists(problem).forward,
                         .num_key_heads = narrow<int>(problem.num_key_heads),
                         .window = window_argument(problem)},
        stream);
}

void attention_row_terms(const AttentionKernels& kernels,
                         const AttentionProblem& problem,
                         const AttentionResultTensors& result,
                         const HeadTensor& d_o,
                         void* row_terms,
                         gpu::StreamView stream) {
    check_problem(problem);
    const AttentionShape& shape = problem.shape;
    const std::int64_t num_tokens = problem.schedule->num_blocks() * shape.block_size;
    const std::int64_t rows = num_tokens * problem.num_key_heads * shape.group;
    const std::int64_t rows_per_block =
        kRowTermsThreads / (shape.head_dim / 8) * std::int64_t{kRowTermsPerLane};
    DFLASH_CHECK(rows <= std::numeric_limits<std::uint32_t>::max(), "{} rows", rows);
    DFLASH_CHECK(reinterpret_cast<std::uintptr_t>(row_terms) % 16 == 0,
                 "attention: row terms at {}; 16-byte alignment expected",
                 row_terms);
    launch_with(kernels.row_terms,
                grid_size((rows + rows_per_block - 1) / rows_per_block, 1, 1),
                RowTermsArguments{.o = rows_of(result.o, "o"),
                                  .o_rest = rows_of(result.o_rest, "rest of o"),
                                  .d_o = rows_of(d_o, "dO"),
                                  .lse_MQ = result.lse_MQ,
                                  .anchors_N = problem.device_schedule,
                                  .terms_KR = static_cast<RowTerms*>(row_terms),
                                  .num_tokens = num_tokens,
                                  .num_key_heads = narrow<int>(problem.num_key_heads)},
                stream);
}

void attention_context_gradient(const AttentionKernels& kernels,
                                const AttentionProblem& problem,
                                const AttentionInputTensors& in,
                                const HeadTensor& d_o,
                                const void* row_terms,
                                const AttentionGradientTensors& out,
                                gpu::StreamView stream) {
    check_problem(problem);
    const CopySteps steps(kernels.context_gradient, problem.shape);
    const AttentionSchedule& schedule = *problem.schedule;
    launch_with(
        kernels.context_gradient,
        grid_size(
            static_cast<std::int64_t>(schedule.context_gradient.size()), problem.num_key_heads, 1),
        ContextGradientArguments{
            .q = rows_of(in.q, "q", steps.of_rows),
            .d_o = rows_of(d_o, "dO", steps.of_rows),
            .k_context = rows_of(in.k_context, "k of the context", steps.of_keys),
            .v_context = rows_of(in.v_context, "v of the context", steps.of_keys),
            .dk_context = rows_of(out.dk_context, "dk of the context"),
            .dv_context = rows_of(out.dv_context, "dv of the context"),
            .terms_KR = static_cast<const RowTerms*>(row_terms),
            .tasks = DeviceLists(problem).context_gradient,
            .num_tokens = schedule.num_blocks() * problem.shape.block_size,
            .num_key_heads = narrow<int>(problem.num_key_heads),
            .window = window_argument(problem)},
        stream);
}

void attention_query_gradient(const AttentionKernels& kernels,
                              const AttentionProblem& problem,
                              const AttentionInputTensors& in,
                              const HeadTensor& d_o,
                              const void* row_terms,
                              const AttentionGradientTensors& out,
                              gpu::StreamView stream) {
    check_problem(problem);
    const CopySteps steps(kernels.query_gradient, problem.shape);
    const AttentionSchedule& schedule = *problem.schedule;
    const int rows = attention_task_sizes(problem.shape).query_gradient_rows;
    launch_with(kernels.query_gradient,
                grid_size(static_cast<std::int64_t>(schedule.query_gradient.size()),
                          problem.num_key_heads,
                          parts_of(problem.shape, rows)),
                QueryGradientArguments{
                    .q = rows_of(in.q, "q", steps.of_rows),
                    .d_o = rows_of(d_o, "dO", steps.of_rows),
                    .k_context = rows_of(in.k_context, "k of the context", steps.of_keys),
                    .v_context = rows_of(in.v_context, "v of the context", steps.of_keys),
                    .k_block = rows_of(in.k_block, "k of the blocks", steps.of_keys),
                    .v_block = rows_of(in.v_block, "v of the blocks", steps.of_keys),
                    .dq = rows_of(out.dq, "dq"),
                    .dk_block = rows_of(out.dk_block, "dk of the blocks"),
                    .dv_block = rows_of(out.dv_block, "dv of the blocks"),
                    .terms_KR = static_cast<const RowTerms*>(row_terms),
                    .tasks = DeviceLists(problem).query_gradient,
                    .num_tokens = schedule.num_blocks() * problem.shape.block_size,
                    .num_key_heads = narrow<int>(problem.num_key_heads),
                    .window = window_argument(problem)},
                stream);
}

void attention_backward(const AttentionKernels& kernels,
                        const AttentionProblem& problem,
                        const AttentionInputTensors& in,
                        const AttentionResultTensors& result,
                        const HeadTensor& d_o,
                        void* row_terms,
                        const AttentionGradientTensors& out,
                        gpu::StreamView stream) {
    attention_row_terms(kernels, problem, result, d_o, row_terms, stream);
    attention_context_gradient(kernels, problem, in, d_o, row_terms, out, stream);
    attention_query_gradient(kernels, problem, in, d_o, row_terms, out, stream);
}

}  // namespace dflash::kernels
