// SPDX-License-Identifier: Apache-2.0
// Cross-entropy of rows of logits, their argmax, and the gradient P - onehot(label) in bf16 or 8
// bits, which may take the place of the logits. A block has one row.
//
// Constants of the instance:
//   LOGITS_FLOAT  logits are fp32, else bf16
//   UNROLL        vectors of 16 bytes that a thread loads before it computes: a stretch of the row
//                 is UNROLL DFLASH_THREADS of them
//   KEPT          stretches at the start of the row that stay in shared memory for the second pass
//   GRADIENT_E5M2 the gradient is e5m2 with a scale for each row, of fp32 logits; else bf16
//
// First pass: maximum m and the sum of e^(x - m) over all words but the label, by an online softmax
// (Milakov and Gimelshein, arXiv 1805.02867), since the label's entry of the gradient is minus that
// sum over the whole one: exact where P is near 1, and so is the loss, log(1 + sum) there. Second
// pass: the row again, from shared memory and, as far as the rows at work fit into it, the L2
// cache. Bytes of a logit: 2 or 4 read once or twice, 1 or 2 written; about 12 operations and two
// exponentials.
//
// In 8 bits the label's entry is -2^15 exactly. It is minus the sum of all others, so they lie
// between 0 and 2^15, and e5m2, whose smallest number is 2^-16, has them down to 2^-31 of it. e4m3
// would reach 2^-17 only, which early in training is more than most of them are.
#include "cross_entropy_arguments.cuh"
#include "float8.cuh"
#include "row_vectors.cuh"

namespace dflash::kernels {
namespace {

constexpr int kThreads = DFLASH_THREADS;
constexpr int kWarps = kThreads / kWarpSize;
constexpr int kUnroll = UNROLL;
constexpr int kKept = KEPT;
constexpr bool kIsFloat = LOGITS_FLOAT != 0;
constexpr bool kIsFloat8 = GRADIENT_E5M2 != 0;
static_assert(kIsFloat || !kIsFloat8);
constexpr int kElements = kIsFloat ? 4 : 8;
constexpr int kStretch = kThreads * kUnroll;  // vectors
constexpr float kLog2e = 1.4426950408889634f;
constexpr float kLowest = -3.402823466e38f;

using Logit = ElementOf<kIsFloat>::Type;
using Logits = Vector<Logit, kElements>;

__device__ __forceinline__ float exp2_of(float x) {
    float result;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
    return result;
}

/// e^(x - m) for x <= m.
__device__ __forceinline__ float exp_below(float x, float m) {
    return exp2_of((x - m) * kLog2e);
}

/// Stands in for logits beyond the end of the row: -infinity, which adds nothing.
__device__ __forceinline__ Logits nothing() {
    Logits v;
#pragma unroll
    for (Word& word : v.words) {
        word = kIsFloat ? 0xff800000u : 0xff80ff80u;
    }
    return v;
}

/// How elements of the gradient lie in memory.
template <bool kIsFloat8>
struct GradientMemory {
    using Type = BFloat16;

    __device__ __forceinline__ static void put(Type* target, const float (&values)[kElements]) {
        store(target, rounded<BFloat16>(values));
    }

    __device__ __forceinline__ static void put_one(Type* target, float value) {
        store_one(target, value);
    }
};

template <>
struct GradientMemory<true> {
    using Type = Float8;
    static constexpr float kLabel = -32768.0f;

    // Smaller sums of the other words' e^(x - m) count as 0: the factor could not be formed.
    static constexpr float kSmallestOthers = 0x1p-100f;

    __device__ __forceinline__ static void put(Type* target, const float (&values)[kElements]) {
        store_four(target, e5m2_pair(values[0], values[1]) | e5m2_pair(values[2], values[3]) << 16);
    }

    __device__ __forceinline__ static void put_one(Type* target, float value) {
        store_one(target, e5m2_pair(value, 0.0f));
    }
};

/// Softmax of a part of the row, and where its maximum was first met.
struct Part {
    float maximum;  // the lowest number where there is none
    float others;   // sum of e^(x - maximum) without the label
    int first;      // first element of the first vector that has the maximum
};

/// In any order the same up to rounding; fixed here.
__device__ __forceinline__ Part joined(const Part& a, const Part& b) {
    Part all;
    all.maximum = fmaxf(a.maximum, b.maximum);
    all.others =
        a.others * exp_below(a.maximum, all.maximum) + b.others * exp_below(b.maximum, all.maximum);
    all.first = a.maximum > b.maximum   ? a.first
                : b.maximum > a.maximum ? b.first
                                        : min(a.first, b.first);
    return all;
}

__device__ __forceinline__ Part joined_over_warp(Part part) {
#pragma unroll
    for (int distance = kWarpSize / 2; distance > 0; distance /= 2) {
        const Part other{__shfl_xor_sync(kAllLanes, part.maximum, distance),
                         __shfl_xor_sync(kAllLanes, part.others, distance),
                         __shfl_xor_sync(kAllLanes, part.first, distance)};
        // The same operands in the same order in both lanes, so the same bits.
        const bool upper = (threadIdx.x & static_cast<unsigned>(distance)) != 0;
        part = upper ? joined(other, part) : joined(part, other);
    }
    return part;
}

/// Adds the values of elements column .. column + kCount - 1. The label's adds nothing.
template <int kCount>
__device__ __forceinline__ void add(Part& part, float (&values)[kCount], int column, int label) {
    float largest = values[0];
#pragma unroll
    for (int e = 1; e < kCount; ++e) {
        largest = fmaxf(largest, values[e]);
    }
    if (largest > part.maximum) {
        part.others *= exp_below(part.maximum, largest);
        part.maximum = largest;
        part.first = column;
    }
    if (static_cast<unsigned>(label - column) < static_cast<unsigned>(kCount)) {
#pragma unroll
        for (int e = 0; e < kCount; ++e) {
            values[e] = column + e == label ? __uint_as_float(0xff800000u) : values[e];
        }
    }
    float sum = 0;
#pragma unroll
    for (int e = 0; e < kCount; ++e) {
        sum += exp_below(values[e], part.maximum);
    }
    part.others += sum;
}

/// The row's maximum, sum and first maximum, the same in all threads.
__device__ __forceinline__ Part joined_over_block(Part part, Part (&parts)[kWarps]) {
    part = joined_over_warp(part);
    if (threadIdx.x % kWarpSize == 0) {
        parts[threadIdx.x / kWarpSize] = part;
    }
    __syncthreads();
    part = parts[0];
#pragma unroll 4
    for (int warp = 1; warp < kWarps; ++warp) {
        part = joined(part, parts[warp]);
    }
    return part;
}

/// A logit in memory as fp32.
template <typename T>
__device__ __forceinline__ float value_of(T x) {
    if constexpr (sizeof(T) == sizeof(float)) {
        return x;
    } else {
        return __uint_as_float(static_cast<Word>(x.bits) << 16);
    }
}

/// A row, cut into stretches of vectors; a thread has every kThreads-th vector of a stretch.
class Row {
  public:
    __device__ __forceinline__ Row(const Logit* logits, int size)
        : logits_(logits), num_vectors_(size / kElements) {}

    __device__ __forceinline__ int num_stretches() const {
        return ceil_div(num_vectors_, kStretch);
    }

    __device__ __forceinline__ int vector(int stretch, int i) const {
        return stretch * kStretch + i * kThreads + static_cast<int>(threadIdx.x);
    }

    __device__ __forceinline__ bool has(int vector) const { return vector < num_vectors_; }

    __device__ __forceinline__ void load(Logits (&vectors)[kUnroll], int stretch) const {
#pragma unroll
        for (int i = 0; i < kUnroll; ++i) {
            const int v = vector(stretch, i);
            vectors[i] = has(v) ? load_once<kElements>(logits_ + static_cast<Offset>(v) * kElements)
                                : nothing();
        }
    }

    /// First element behind the last whole vector.
    __device__ __forceinline__ int rest() const {
        return num_vectors_ * kElements;
    }

  private:
    const Logit* logits_;
    int num_vectors_;
};

}  // namespace

extern "C" __global__ void __launch_bounds__(DFLASH_THREADS, DFLASH_MIN_BLOCKS)
    cross_entropy(const __grid_constant__ CrossEntropyArguments arguments) {
    extern __shared__ __align__(16) unsigned char shared[];
    __shared__ Part parts[kWarps];
    Logits* const kept = reinterpret_cast<Logits*>(shared);
    const Offset r = blockIdx.x;
    const int size = arguments.vocabulary;
    const Logit* const logits =
        static_cast<const Logit*>(arguments.logits_CV) + r * arguments.logits_stride;
    const int label = static_cast<int>(arguments.label_C[r]);
    const float label_logit = value_of(logits[label]);
    const Row row(logits, size);
    const int rest = row.rest() + static_cast<int>(threadIdx.x);
    const float rest_logit = rest < size ? value_of(logits[rest]) : kLowest;

    Part part{kLowest, 0.0f, 0x7fffffff};
    for (int stretch = 0; stretch < row.num_stretches(); ++stretch) {
        Logits vectors[kUnroll];
        row.load(vectors, stretch);
#pragma unroll
        for (int i = 0; i < kUnroll; ++i) {
            if (stretch < kKept) {
                kept[row.vector(stretch, i)] = vectors[i];
            }
            float values[kElements];
#pragma unroll
            for (int e = 0; e < kElements; ++e) {
                values[e] = element(vectors[i], e);
            }
            add(part, values, row.vector(stretch, i) * kElements, label);
        }
    }
    if (rest < size) {
        float values[1] = {rest_logit};
        add(part, values, rest, label);
    }
    part = joined_over_block(part, parts);

    const float below = label_logit - part.maximum;
    const float label_part = exp_below(label_logit, part.maximum);
    const float total = part.others + label_part;
    // The first maximum lies in the vector that begins at part.first, or is that element itself
    // behind the vectors.
    if (threadIdx.x == 0) {
        int place = part.first < size ? part.first : 0;
        while (place + 1 < size && value_of(logits[place]) < part.maximum) {
            ++place;
        }
        arguments.argmax_C[r] = place;
        arguments.cross_entropy_C[r] = below == 0.0f ? log1pf(part.others) : logf(total) - below;
    }
    if (arguments.gradient_CV == nullptr) {
        return;
    }

    using Memory = GradientMemory<kIsFloat8>;
    Memory::Type* const gradient =
        static_cast<Memory::Type*>(arguments.gradient_CV) + r * arguments.gradient_stride;
    float scale = 1.0f / total;
    float label_gradient = -part.others * scale;
    if constexpr (kIsFloat8) {
        const bool is_zero = part.others < GradientMemory<true>::kSmallestOthers;
        if (threadIdx.x == 0) {
            arguments.gradient_scale_C[r] = label_gradient / GradientMemory<true>::kLabel;
        }
        label_gradient = is_zero ? 0.0f : GradientMemory<true>::kLabel;
        scale = is_zero ? 0.0f : -label_gradient / part.others;
    }
    const auto gradient_of = [&](float x, int place) {
        return place == label ? label_gradient : exp_below(x, part.maximum) * scale;
    };
    // Thread 0 may still look for the maximum, and fp32 rows are overwritten in front of what is
    // read next: a stretch is read by all before any of it is written.
    __syncthreads();
    for (int stretch = 0; stretch < row.num_stretches(); ++stretch) {
        Logits vectors[kUnroll];
        if (stretch < kKept) {
#pragma unroll
            for (int i = 0; i < kUnroll; ++i) {
                vectors[i] = kept[row.vector(stretch, i)];
            }
        } else {
            row.load(vectors, stretch);
        }
        if constexpr (kIsFloat) {
            __syncthreads();
        }
#pragma unroll
        for (int i = 0; i < kUnroll; ++i) {
            const int v = row.vector(stretch, i);
            float values[kElements];
#pragma unroll
            for (int e = 0; e < kElements; ++e) {
                values[e] = gradient_of(element(vectors[i], e), v * kElements + e);
            }
            if (row.has(v)) {
                Memory::put(gradient + static_cast<Offset>(v) * kElements, values);
            }
        }
    }
    if (rest < size) {
        Memory::put_one(gradient + rest, gradient_of(rest_logit, rest));
    }
}

}  // namespace dflash::kernels
