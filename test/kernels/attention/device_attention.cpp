// SPDX-License-Identifier: Apache-2.0
#include "device_attention.hpp"

#include <dflash/core/check.hpp>
#include <dflash/gpu/check.hpp>
#include <dflash/kernels/kernel_cache.hpp>

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <cuda_runtime_api.h>
#include <doctest/doctest.h>
#include <string>

namespace dflash::kernels::test {
namespace {

constexpr std::size_t kGuard = 256;  // elements before and after a tensor

std::string cache_folder() {
    const char* const folder = std::getenv("DFLASH_KERNEL_CACHE");
    return folder != nullptr ? folder : default_cache_root() + "/kernels";
}

/// Device memory; freed without a word.
template <typename T>
class Memory : NonCopyable {
  public:
    explicit Memory(const std::vector<T>& content) : size_(content.size()) {
        void* data = nullptr;
        gpu::check(cudaMalloc(&data, std::max<std::size_t>(size_, 1) * sizeof(T)));
        data_ = static_cast<T*>(data);
        gpu::check(cudaMemcpy(data_, content.data(), size_ * sizeof(T), cudaMemcpyHostToDevice));
    }

    ~Memory() { cudaFree(data_); }

    T* data() const { return data_; }

    std::vector<T> fetch() const {
        std::vector<T> result(size_);
        gpu::check(cudaMemcpy(result.data(), data_, size_ * sizeof(T), cudaMemcpyDeviceToHost));
        return result;
    }

  private:
    std::size_t size_;
    T* data_ = nullptr;
};

/// A tensor [tokens, heads, D] between guard bands, with gaps or without; everything that is not an
/// element is poison, and elements too until they are written.
class GuardedTensor {
  public:
    GuardedTensor(std::int64_t tokens,
                  std::int64_t heads,
                  std::int64_t head_dim,
                  Layout layout,
                  const std::vector<Bf16>* values = nullptr)
        : tokens_(static_cast<std::size_t>(tokens)),
          heads_(static_cast<std::size_t>(heads)),
          head_dim_(static_cast<std::size_t>(head_dim)),
          head_stride_(head_dim_ + (layout == Layout::Gaps ? 8 : 0)),
          token_stride_(heads_ * head_stride_ + (layout == Layout::Gaps ? 24 : 0)),
          memory_(initial(values)) {}

    HeadTensor view() const {
        return {memory_.data() + kGuard,
                static_cast<std::int64_t>(token_stride_),
                static_cast<std::int64_t>(head_stride_)};
    }

    std::vector<Bf16> fetch() const {
        std::vector<Bf16> all = memory_.fetch();
        std::vector<Bf16> result(tokens_ * heads_ * head_dim_);
        for (std::size_t i = 0; i < result.size(); ++i) {
            result[i] = std::exchange(all[place(i)], kPoison);
        }
        const bool untouched =
            std::all_of(all.begin(), all.end(), [](Bf16 value) { return value == kPoison; });
        CHECK(untouched);
        return result;
    }

  private:
    std::size_t place(std::size_t element) const {
        const std::size_t head = element / head_dim_;
        return kGuard + head / heads_ * token_stride_ + head % heads_ * head_stride_ +
               element % head_dim_;
    }

    std::vector<Bf16> initial(const std::vector<Bf16>* values) const {
        std::vector<Bf16> all(2 * kGuard + tokens_ * token_stride_, kPoison);
        if (values != nullptr) {
            DFLASH_CHECK(
                values->size() == tokens_ * heads_ * head_dim_, "{} values", values->size());
            for (std::size_t i = 0; i < values->size(); ++i) {
                all[place(i)] = (*values)[i];
            }
        }
        return all;
    }

    std::size_t tokens_;
    std::size_t heads_;
    std::size_t head_dim_;
    std::size_t head_stride_;
    std::size_t token_stride_;
    Memory<Bf16> memory_;
};

/// fp32 values between guard bands.
class GuardedFloats {
  public:
    explicit GuardedFloats(std::size_t size)
        : size_(size),
          memory_(std::vector<float>(2 * kGuard + size, std::bit_cast<float>(kPattern))) {}

    float* data() const { return memory_.data() + kGuard; }

    std::vector<float> fetch() const {
        const std::vector<float> all = memory_.fetch();
        bool untouched = true;
        for (std::size_t i = 0; i < kGuard; ++i) {
            untouched = untouched && std::bit_cast<std::uint32_t>(all[i]) == kPattern &&
                        std::bit_cast<std::uint32_t>(all[all.size() - 1 - i]) == kPattern;
        }
        CHECK(untouched);
        return {all.begin() + kGuard, all.end() - kGuard};
    }

  private:
    static constexpr std::uint32_t kPattern = 0x7fc00123;
    std::size_t size_;
    Memory<float> memory_;
};

/// The kernels of a shape with the tiles of one architecture, to be built for another.
std::vector<KernelSpec> specs_of(const AttentionShape& shape,
                                 const Architecture& tiles,
                                 const Architecture& target) {
    std::vector<KernelSpec> specs = attention_kernels(shape, tiles);
    for (KernelSpec& spec : specs) {
        for (SpillAllowance& allowance : spec.allowed_spills) {
            allowance.architecture = target.name();
        }
    }
    return specs;
}

std::vector<double> doubles(const std::vector<Bf16>& x) {
    std::vector<double> result(x.size());
    std::transform(
        x.begin(), x.end(), result.begin(), [](Bf16 value) { return double{from_bf16(value)}; });
    return result;
}

}  // namespace

KernelShelf::KernelShelf()
    : device_(gpu::parse_devices("0").front()),
      builder_(SourceSet::embedded(), CacheOptions{.folder = cache_folder()}),
      driver_(make_cuda_driver()) {}

void KernelShelf::prepare(const std::vector<AttentionShape>& shapes,
                          std::optional<Architecture> tiles_of) {
    const Architecture architecture = driver_->architecture(device_);
    const Architecture tiles = tiles_of.value_or(architecture);
    std::vector<KernelRequest> requests;
    std::vector<AttentionShape> wanted;
    for (const AttentionShape& shape : shapes) {
        const auto known = [&](const Entry& entry) {
            return entry.shape == shape && entry.tiles_of == tiles;
        };
        if (std::any_of(kernels_.begin(), kernels_.end(), known) ||
            std::find(wanted.begin(), wanted.end(), shape) != wanted.end()) {
            continue;
        }
        wanted.push_back(shape);
        // Shapes share kernels.
        for (const KernelSpec& spec : specs_of(shape, tiles, architecture)) {
            const auto asked = [&](const KernelRequest& request) { return request.spec == spec; };
            if (std::none_of(requests.begin(), requests.end(), asked) && find(spec) == nullptr) {
                requests.push_back({spec, architecture});
            }
        }
    }
    for (BuiltKernel& kernel : builder_.build(requests)) {
        const BuiltKernel& kept = built_.emplace_back(std::move(kernel));
        loaded_.emplace_back(kept.request.spec, driver_->load(kept, device_), device_.ordinal);
    }
    for (const AttentionShape& shape : wanted) {
        LoadedKernel loaded[4];
        std::size_t count = 0;
        for (const KernelSpec& spec : specs_of(shape, tiles, architecture)) {
            loaded[count++] = *find(spec);
        }
        kernels_.push_back({.shape = shape,
                            .tiles_of = tiles,
                            .kernels = {.forward = loaded[0],
                                        .row_terms = loaded[1],
                                        .context_gradient = loaded[2],
                                        .query_gradient = loaded[3]}});
    }
}

const LoadedKernel* KernelShelf::find(const KernelSpec& spec) const {
    const auto at = std::find_if(loaded_.begin(), loaded_.end(), [&](const LoadedKernel& kernel) {
        return kernel.spec() == spec;
    });
    return at == loaded_.end() ? nullptr : &*at;
}

const AttentionKernels& KernelShelf::get(const AttentionShape& shape,
                                         std::optional<Architecture> tiles_of) {
    prepare({shape}, tiles_of);
    const Architecture tiles = tiles_of.value_or(driver_->architecture(device_));
    return std::find_if(
               kernels_.begin(),
               kernels_.end(),
               [&](const Entry& entry) { return entry.shape == shape && entry.tiles_of == tiles; })
        ->kernels;
}

KernelShelf& kernel_shelf() {
    // Never destroyed: the CUDA runtime may be gone when static objects are.
    static KernelShelf* const shelf = new KernelShelf();
    return *shelf;
}

AttentionResults DeviceResults::values() const {
    return {.o = doubles(o),
            .lse = std::vector<double>(lse.begin(), lse.end()),
            .dq = doubles(dq),
            .dk_context = doubles(dk_context),
            .dv_context = doubles(dv_context),
            .dk_block = doubles(dk_block),
            .dv_block = doubles(dv_block)};
}

struct DeviceAttention::Buffers {
    const AttentionKernels& kernels;
    AttentionSchedule schedule;
    Memory<std::int32_t> device_schedule;
    AttentionProblem problem;
    GuardedTensor q, k_context, v_context, k_block, v_block, d_o;
    GuardedTensor o, o_rest, dq, dk_context, dv_context, dk_block, dv_block;
    GuardedFloats lse;
    GuardedFloats row_terms;

    Buffers(const AttentionCase& c,
            const AttentionInputs& in,
            Layout layout,
            std::optional<Architecture> tiles_of)
        : kernels(kernel_shelf().get(c.shape, tiles_of)),
          schedule(c.schedule()),
          device_schedule(schedule.packed()),
          problem{.shape = c.shape,
                  .num_key_heads = c.num_key_heads,
                  .window = c.window,
                  .schedule = &schedule,
                  .device_schedule = device_schedule.data()},
          q(c.block_tokens(), c.num_query_heads(), c.shape.head_dim, layout, &in.q),
          k_context(c.num_tokens, c.num_key_heads, c.shape.head_dim, layout, &in.k_context),
          v_context(c.num_tokens, c.num_key_heads, c.shape.head_dim, layout, &in.v_context),
          k_block(c.block_tokens(), c.num_key_heads, c.shape.head_dim, layout, &in.k_block),
          v_block(c.block_tokens(), c.num_key_heads, c.shape.head_dim, layout, &in.v_block),
          d_o(c.block_tokens(), c.num_query_heads(), c.shape.head_dim, layout, &in.d_o),
          o(c.block_tokens(), c.num_query_heads(), c.shape.head_dim, layout),
          o_rest(c.block_tokens(), c.num_query_heads(), c.shape.head_dim, layout),
          dq(c.block_tokens(), c.num_query_heads(), c.shape.head_dim, layout),
          dk_context(c.num_tokens, c.num_key_heads, c.shape.head_dim, layout),
          dv_context(c.num_tokens, c.num_key_heads, c.shape.head_dim, layout),
          dk_block(c.block_tokens(), c.num_key_heads, c.shape.head_dim, layout),
          dv_block(c.block_tokens(), c.num_key_heads, c.shape.head_dim, layout),
          lse(static_cast<std::size_t>(c.block_tokens() * c.num_query_heads())),
          row_terms(static_cast<std::size_t>(
              attention_row_terms_bytes(c.block_tokens(), c.num_query_heads()) / 4)),
          context_keys(k_context.view()) {}

    HeadTensor context_keys;

    AttentionInputTensors inputs() const {
        return {q.view(), context_keys, v_context.view(), k_block.view(), v_block.view()};
    }

    AttentionResultTensors results() const {
        return {.o = o.view(), .o_rest = o_rest.view(), .lse_MQ = lse.data()};
    }
};

DeviceAttention::DeviceAttention(const AttentionCase& c,
                                 const AttentionInputs& in,
                                 Layout layout,
                                 std::optional<Architecture> tiles_of)
    : buffers_(std::make_unique<Buffers>(c, in, layout, tiles_of)) {}

DeviceAttention::~DeviceAttention() = default;

void DeviceAttention::replace_context_keys(const HeadTensor& k_context) {
    buffers_->context_keys = k_context;
}

void DeviceAttention::forward() {
    const Buffers& b = *buffers_;
    attention_forward(b.kernels, b.problem, b.inputs(), b.results(), kernel_shelf().stream());
}

void DeviceAttention::backward() {
    const Buffers& b = *buffers_;
    attention_backward(b.kernels,
                       b.problem,
                       b.inputs(),
                       b.results(),
                       b.d_o.view(),
                       b.row_terms.data(),
                       {b.dq.view(),
                        b.dk_context.view(),
                        b.dv_context.view(),
                        b.dk_block.view(),
                        b.dv_block.view()},
                       kernel_shelf().stream());
}

void DeviceAttention::check_inputs() {
    kernel_shelf().stream().synchronize();
    const Buffers& b = *buffers_;
    b.row_terms.fetch();
    for (const GuardedTensor* input :
         {&b.q, &b.k_context, &b.v_context, &b.k_block, &b.v_block, &b.d_o}) {
        input->fetch();
    }
}

DeviceResults DeviceAttention::fetch() {
    kernel_shelf().stream().synchronize();
    const Buffers& b = *buffers_;
    return {.o = b.o.fetch(),
            .lse = b.lse.fetch(),
            .dq = b.dq.fetch(),
            .dk_context = b.dk_context.fetch(),
            .dv_context = b.dv_context.fetch(),
            .dk_block = b.dk_block.fetch(),
            .dv_block = b.dv_block.fetch()};
}

DeviceResults run_attention(const AttentionCase& c,
                            const AttentionInputs& in,
                            Layout layout,
                            std::optional<Architecture> tiles_of) {
    DeviceAttention attention(c, in, layout, tiles_of);
    attention.forward();
    attention.backward();
    attention.check_inputs();
    return attention.fetch();
}

}  // namespace dflash::kernels::test
