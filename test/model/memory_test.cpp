// SPDX-License-Identifier: Apache-2.0
// What a step allocates, counted in Torch's CPU allocator.
#include "reference.hpp"

#include <algorithm>
#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <cstring>
#include <doctest/doctest.h>

namespace dflash::model {
namespace {

struct Count {
    std::int64_t bytes = 0;
    std::int64_t peak = 0;
    std::int64_t largest = 0;
};

/// One tensor's memory; gives it back to the count when it is freed.
struct Piece {
    c10::DataPtr memory;
    std::int64_t bytes;
    Count* count;
};

class CountingAllocator final : public c10::Allocator {
  public:
    CountingAllocator() : real_(c10::GetDefaultCPUAllocator()) {}

    c10::DataPtr allocate(std::size_t size) override {
        c10::DataPtr memory = real_->allocate(size);
        void* data = memory.get();
        const c10::Device device = memory.device();
        const std::int64_t bytes = static_cast<std::int64_t>(size);
        count.bytes += bytes;
        count.peak = std::max(count.peak, count.bytes);
        count.largest = std::max(count.largest, bytes);
        auto piece = std::make_unique<Piece>(Piece{std::move(memory), bytes, &count});
        return {data, piece.release(), &give_back, device};
    }

    c10::DeleterFnPtr raw_deleter() const override { return nullptr; }

    void copy_data(void* to, const void* from, std::size_t size) const override {
        std::memcpy(to, from, size);
    }

    Count count;

  private:
    static void give_back(void* context) {
        const std::unique_ptr<Piece> piece(static_cast<Piece*>(context));
        piece->count->bytes -= piece->bytes;
    }

    c10::Allocator* real_;
};

/// Counts while it lives. The allocator outlives all tensors made through it.
class Watch {
  public:
    Watch() {
        c10::SetCPUAllocator(&allocator(), kPriority);
        restart();
    }

    ~Watch() { c10::SetCPUAllocator(c10::GetDefaultCPUAllocator(), kPriority); }

    Watch(const Watch&) = delete;
    Watch& operator=(const Watch&) = delete;

    void restart() {
        start_ = allocator().count.bytes;
        allocator().count.peak = start_;
        allocator().count.largest = 0;
    }

    std::int64_t peak() const { return allocator().count.peak - start_; }

    std::int64_t kept() const { return allocator().count.bytes - start_; }

    std::int64_t largest() const { return allocator().count.largest; }

  private:
    static constexpr std::uint8_t kPriority = 100;

    static CountingAllocator& allocator() {
        static CountingAllocator counting;
        return counting;
    }

    std::int64_t start_ = 0;
};

DraftConfig sized_config(std::vector<LayerType> layers, std::int64_t vocab_size) {
    DraftConfig config = small_config(std::move(layers), 8);
    config.hidden_size = 32;
    config.intermediate_size = 48;
    config.num_heads = 8;
    config.num_kv_heads = 2;
    config.head_dim = 16;
    config.vocab_size = vocab_size;
    config.mask_token_id = 0;
    return config;
}

TEST_SUITE("model.memory") {
    TEST_CASE("a step stays under memory_need; no piece is of queries x keys or rows x words") {
        struct Size {
            std::vector<LayerType> layers;
            std::int64_t vocab_size;
            std::int32_t tokens;
            std::int32_t blocks;
        };

        for (const auto& [layers, vocab_size, tokens, blocks] :
             {Size{{LayerType::Full, LayerType::Full}, 30000, 700, 150},
              Size{{LayerType::Sliding, LayerType::Full}, 60, 3000, 200}}) {
            const DraftConfig config = sized_config(layers, vocab_size);
            std::vector<std::int32_t> anchors;
            for (std::int32_t n = 0; n < blocks; ++n) {
                anchors.push_back(60 + 4 * n);
            }
            const data::PackedRow row = make_row(config, {tokens, 200}, {anchors, {5, 150}});
            const std::int64_t T = row.num_tokens();
            const std::int64_t N = row.blocks.num_blocks();
            const std::int64_t M = N * config.block_size;
            const auto drafter = make_drafter(config, at::kFloat);
            const at::Tensor features = at::randn({3, T, config.hidden_size});
            const Drafter::MemoryNeed need = Drafter::memory_need(config, T, N, 4);
            CAPTURE(vocab_size);

            Watch watch;
            drafter->forward_backward(row, features);
            CHECK(watch.peak() <= need.activations);
            CHECK(watch.largest() <= need.largest_piece);
            // The bounds themselves mean something.
            CHECK(need.activations < 2 * watch.peak());
            CHECK(need.largest_piece < (64 << 20) + (1 << 20));
            if (vocab_size > T) {
                CHECK(2 * need.largest_piece < 4 * M * vocab_size);
            } else {
                CHECK(20 * need.largest_piece < 4 * M * T * config.num_heads);
            }

            // From the second row on only temporaries come and go.
            watch.restart();
            drafter->forward_backward(row, features);
            CHECK(watch.kept() == 0);
            const std::int64_t second_peak = watch.peak();
            CHECK(second_peak < need.activations / 3);
            watch.restart();
            drafter->forward_backward(row, features);
            CHECK(watch.kept() == 0);
            CHECK(watch.peak() == second_peak);
        }
    }

    TEST_CASE("layers that compute their MLP again keep less, and give the same bits") {
        const DraftConfig config = sized_config(std::vector(4, LayerType::Full), 60);
        const data::PackedRow row = make_row(config, {400}, {{20, 100, 200, 300, 390}});
        const at::Tensor features = at::randn({3, 400, config.hidden_size});
        std::int64_t kept_by_all = 0;
        at::Tensor expected;
        for (const std::int64_t layers : {0, 1, 4}) {
            CAPTURE(layers);
            const auto drafter = make_drafter(config, at::kFloat, layers);
            Watch watch;
            drafter->forward_backward(row, features);
            const Drafter::MemoryNeed need =
                Drafter::memory_need(config, row.num_tokens(), row.blocks.num_blocks(), 4, layers);
            CHECK(watch.peak() <= need.activations);
            if (layers == 0) {
                kept_by_all = watch.kept();
                expected = drafter->weights().gradient_flat();
                continue;
            }
            CHECK(drafter->weights().gradient_flat().equal(expected));
            // gate and up of every layer but one, whose memory all share; the last layer's has no
            // row of slot 0.
            const std::int64_t gate_up = 4 * 2 * config.intermediate_size * 5 * config.block_size;
            CHECK(watch.kept() <= kept_by_all - (layers - 1) * gate_up + gate_up / 8);
        }
    }

    TEST_CASE("a head in 8 bits stays under memory_need, too") {
        const DraftConfig config = sized_config({LayerType::Full}, 30000);
        std::vector<std::int32_t> anchors;
        for (std::int32_t n = 0; n < 100; ++n) {
            anchors.push_back(10 + 4 * n);
        }
        const data::PackedRow row = make_row(config, {450}, {anchors});
        const at::Tensor features = at::randn({3, 450, config.hidden_size});
        const auto exact = make_drafter(config, at::kFloat);
        for (const HeadPrecision precision : {HeadPrecision::Float8Logits, HeadPrecision::Float8}) {
            Drafter drafter(config,
                            exact->ends(),
                            at::kCPU,
                            at::kFloat,
                            make_torch_paths(at::kCPU),
                            DraftWeights::Use::Training,
                            LossWeights{},
                            /*recompute_layers=*/0,
                            precision);
            drafter.weights().compute_flat().copy_(exact->weights().compute_flat());
            const Drafter::MemoryNeed need = Drafter::memory_need(
                config, row.num_tokens(), row.blocks.num_blocks(), 4, 0, precision);
            Watch watch;
            drafter.forward_backward(row, features);
            CHECK(watch.peak() <= need.activations);
            CHECK(watch.largest() <= need.largest_piece);
            CHECK(need.activations < 2 * watch.peak());
            watch.restart();
            drafter.forward_backward(row, features);
            CHECK(watch.kept() == 0);
        }
    }

    TEST_CASE("evaluation needs no activations per layer") {
        const DraftConfig deep = sized_config(std::vector(8, LayerType::Full), 60);
        const data::PackedRow row = make_row(deep, {400}, {{20, 100, 200, 300, 390}});
        const at::Tensor features = at::randn({3, 400, deep.hidden_size});
        const auto trained = make_drafter(deep, at::kFloat);
        const auto evaluated = make_drafter(deep, at::kFloat);
        Watch watch;
        trained->forward_backward(row, features);
        const std::int64_t training = watch.kept();
        watch.restart();
        evaluated->evaluate(row, features);
        CHECK(watch.kept() < training / 2);
    }

    TEST_CASE("needs grow with tokens, blocks and element size") {
        const DraftConfig config = sized_config({LayerType::Full}, 60);
        const Drafter::MemoryNeed base = Drafter::memory_need(config, 1000, 100, 4);
        CHECK(Drafter::memory_need(config, 2000, 100, 4).activations > base.activations);
        CHECK(Drafter::memory_need(config, 1000, 200, 4).activations > base.activations);
        std::int64_t parameters = 0;
        for (const WeightSpec& spec : weight_specs(config)) {
            parameters += spec.shape.size() == 1 ? spec.shape[0] : spec.shape[0] * spec.shape[1];
        }
        CHECK(base.weights == parameters * 8);
        CHECK(Drafter::memory_need(config, 1000, 100, 2).weights == parameters * 6);
    }
}

}  // namespace
}  // namespace dflash::model
