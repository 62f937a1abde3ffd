// SPDX-License-Identifier: Apache-2.0
// Times decoding with a target of random weights on one GPU, through the generator: prefill, decode
// steps from graphs, sampling, reading of tokens; and rounds of draft and verify.
//
//     bench_decode [--model qwen3-8b|smollm2] [--batch N] [--context N] [--steps N] [--layers N]
//                  [--draft-layers N] [--block N] [--peak GBPS]
//
// A step's time is what `steps` more tokens of every answer cost, so the prefill is not in it; the
// mean context of a step is `context`. The limit by bandwidth counts the weights (an embedding of
// its own is not read) and the cached keys and values once each. First it is checked that new
// tokens behind cached ones give what the forward over whole sequences gives.
//
// Rounds are those of a drafter of the target's shape with `draft-layers` layers (0: none are
// timed) and five tapped layers; random drafts are refused, so a round gives one token, and what it
// costs in plain steps is the mean acceptance length at which drafting begins to pay.
//
// T tokens, K tapped layers, H hidden size, S sequences, B slots of a block, D = B - 1 drafts.
#include "../../src/target/dense_target.hpp"

#include <dflash/core/error.hpp>
#include <dflash/eval/decode_rounds.hpp>
#include <dflash/eval/drafter_source.hpp>
#include <dflash/gpu/device.hpp>
#include <dflash/kernels/kernel_builder.hpp>
#include <dflash/kernels/kernel_cache.hpp>
#include <dflash/kernels/kernel_driver.hpp>
#include <dflash/target/generator.hpp>
#include <dflash/tensor/kernel_row_ops.hpp>
#include <dflash/tensor/step_graphs.hpp>
#include <dflash/train/torch_worker.hpp>

#include <ATen/ATen.h>
#include <algorithm>
#include <c10/cuda/CUDAStream.h>
#include <charconv>
#include <chrono>
#include <deque>
#include <fmt/format.h>
#include <functional>
#include <memory>
#include <numeric>
#include <string_view>
#include <utility>
#include <vector>

namespace dflash::target {
namespace {

struct Options {
    std::string_view model = "qwen3-8b";
    std::int64_t batch = 128;
    std::int64_t context = 1024;
    std::int64_t steps = 64;
    std::int64_t layers = 0;  // 0: the model's
    std::int64_t draft_layers = 5;
    std::int64_t block = 16;
    std::int64_t peak_gbps = 4300;  // a copy on an H200, bytes read and written
};

Options parse(int argc, char** argv) {
    Options options;
    for (int i = 1; i < argc; i += 2) {
        const std::string_view name = argv[i];
        const std::string_view text = i + 1 < argc ? argv[i + 1] : "";
        if (name == "--model" && (text == "qwen3-8b" || text == "smollm2")) {
            options.model = text;
            continue;
        }
        std::int64_t value = 0;
        const bool number =
            std::from_chars(text.data(), text.data() + text.size(), value).ec == std::errc();
        std::int64_t* field = name == "--batch"          ? &options.batch
                              : name == "--context"      ? &options.context
                              : name == "--steps"        ? &options.steps
                              : name == "--layers"       ? &options.layers
                              : name == "--draft-layers" ? &options.draft_layers
                              : name == "--block"        ? &options.block
                              : name == "--peak"         ? &options.peak_gbps
                                                         : nullptr;
        const std::int64_t least = name == "--draft-layers" ? 0 : name == "--block" ? 2 : 1;
        if (!number || field == nullptr || value < least) {
            throw Error(
                ErrorKind::Config,
                {.what = fmt::format("got '{} {}', expected an option and its value", name, text),
                 .where = "command line",
                 .cause = {},
                 .hint = "bench_decode [--model qwen3-8b|smollm2] [--batch N] [--context N] "
                         "[--steps N] [--layers N] [--draft-layers N] [--block N] [--peak GBPS]"});
        }
        *field = value;
    }
    return options;
}

TargetConfig smollm2(std::int64_t layers) {
    TargetConfig config;
    config.family = Family::Llama;
    config.architecture = "LlamaForCausalLM";
    config.model_type = "llama";
    config.hidden_size = 576;
    config.intermediate_size = 1536;
    config.num_layers = layers == 0 ? 30 : layers;
    config.num_heads = 9;
    config.num_kv_heads = 3;
    config.head_dim = 64;
    config.vocab_size = 49152;
    config.max_position_embeddings = 8192;
    config.rope.theta = 1e5;
    config.dtype = "bfloat16";
    config.tied = true;
    return config;
}

TargetConfig qwen3_8b(std::int64_t layers) {
    TargetConfig config;
    config.family = Family::Qwen3;
    config.architecture = "Qwen3ForCausalLM";
    config.model_type = "qwen3";
    config.hidden_size = 4096;
    config.intermediate_size = 12288;
    config.num_layers = layers == 0 ? 36 : layers;
    config.num_heads = 32;
    config.num_kv_heads = 8;
    config.head_dim = 128;
    config.vocab_size = 151936;
    config.max_position_embeddings = 40960;
    config.rope.theta = 1e6;
    config.dtype = "bfloat16";
    return config;
}

DenseWeights random_weights(const TargetConfig& config, const at::TensorOptions& options) {
    const auto matrix = [&](std::int64_t rows, std::int64_t columns) {
        return at::randn({rows, columns}, options).mul_(0.02);
    };
    const auto ones = [&](std::int64_t size) { return at::ones({size}, options); };
    const std::int64_t q = config.num_heads * config.head_dim;
    const std::int64_t k = config.num_kv_heads * config.head_dim;
    DenseWeights weights;
    weights.embed_VH = matrix(config.vocab_size, config.hidden_size).mul_(50);
    for (std::int64_t l = 0; l < config.num_layers; ++l) {
        weights.layers.push_back(
            {.input_norm_H = ones(config.hidden_size),
             .qkv_QKKH = matrix(q + 2 * k, config.hidden_size),
             .q_norm_D = ones(config.head_dim),
             .k_norm_D = ones(config.head_dim),
             .out_HQ = matrix(config.hidden_size, q),
             .mlp_norm_H = ones(config.hidden_size),
             .gate_up_IIH = matrix(2 * config.intermediate_size, config.hidden_size),
             .down_HI = matrix(config.hidden_size, config.intermediate_size)});
    }
    weights.final_norm_H = ones(config.hidden_size);
    weights.head_VH =
        config.tied ? weights.embed_VH : matrix(config.vocab_size, config.hidden_size);
    return weights;
}

/// Kernels compiled when they are first asked for.
class Kernels {
  public:
    explicit Kernels(const gpu::Device& device)
        : device_(device),
          builder_(kernels::SourceSet::embedded(),
                   kernels::cache_options_in(kernels::default_cache_root())),
          driver_(kernels::make_cuda_driver()) {}

    kernels::LoadedKernel find(const kernels::KernelSpec& spec) {
        built_.push_back(builder_.build({{spec, driver_->architecture(device_)}}).front());
        return {built_.back().request.spec, driver_->load(built_.back(), device_), device_.ordinal};
    }

  private:
    gpu::Device device_;
    kernels::KernelBuilder builder_;
    std::unique_ptr<kernels::KernelDriver> driver_;
    std::deque<kernels::BuiltKernel> built_;  // what is loaded refers to it
};

std::vector<TokenId> some_tokens(std::int64_t length, std::int64_t first) {
    std::vector<TokenId> tokens;
    for (std::int64_t i = 0; i < length; ++i) {
        tokens.push_back(static_cast<TokenId>((first * 7919 + i * 104729 + i * i * 31) % 49000));
    }
    return tokens;
}

/// Largest difference over rms between the forward over whole sequences and prefill in pieces, in
/// slots out of order, with the last token decoded.
double largest_difference(TargetModel& model) {
    const std::vector<std::int64_t> lengths = {700, 1, 65, 300, 2};
    const std::vector<std::int32_t> slots = {3, 5, 0, 4, 1};
    std::vector<TokenId> packed;
    std::vector<std::int32_t> positions;
    std::vector<std::int32_t> starts = {0};
    std::vector<std::vector<TokenId>> sequences;
    for (const std::int64_t length : lengths) {
        sequences.push_back(some_tokens(length, length));
        packed.insert(packed.end(), sequences.back().begin(), sequences.back().end());
        for (std::int64_t i = 0; i < length; ++i) {
            positions.push_back(static_cast<std::int32_t>(i));
        }
        starts.push_back(static_cast<std::int32_t>(packed.size()));
    }
    at::Tensor whole_TH;
    model.capture({.tokens = packed, .positions = positions, .starts = starts},
                  std::vector<std::int64_t>{model.config().num_layers - 1},
                  [&](std::int64_t, const at::Tensor& residual_TH) {
                      whole_TH = residual_TH.to(at::kFloat);
                  });
    const auto cache = model.make_cache(6, 800);
    double worst = 0;
    const auto compare = [&](const at::Tensor& got, std::size_t sequence, std::int64_t begin) {
        const at::Tensor expected = whole_TH.narrow(0, starts[sequence] + begin, got.size(0));
        const at::Tensor error =
            (got.to(at::kFloat) - expected).abs().max() / expected.square().mean().sqrt();
        worst = std::max(worst, error.item<double>());
    };
    // Two calls: a third of each sequence, then all but its last token.
    std::vector<std::int64_t> done(sequences.size(), 0);
    for (int call = 0; call < 2; ++call) {
        std::vector<TokenId> tokens;
        std::vector<std::int32_t> cuts = {0};
        std::vector<std::int64_t> from = done;
        for (std::size_t s = 0; s < sequences.size(); ++s) {
            const std::int64_t to = call == 0 ? lengths[s] / 3 : lengths[s] - 1;
            tokens.insert(tokens.end(), sequences[s].begin() + done[s], sequences[s].begin() + to);
            done[s] = to;
            cuts.push_back(static_cast<std::int32_t>(tokens.size()));
        }
        const at::Tensor got =
            model.extend(*cache, {.tokens = tokens, .starts = cuts, .slots = slots}, {}, {});
        for (std::size_t s = 0; s < sequences.size(); ++s) {
            if (cuts[s + 1] > cuts[s]) {
                compare(got.narrow(0, cuts[s], cuts[s + 1] - cuts[s]), s, from[s]);
            }
        }
    }
    std::vector<std::int32_t> last;
    std::vector<std::int32_t> held;
    for (std::size_t s = 0; s < sequences.size(); ++s) {
        last.push_back(sequences[s].back());
        held.push_back(static_cast<std::int32_t>(cache->length(slots[s])));
    }
    const auto upload = [&](const std::vector<std::int32_t>& values) {
        return at::tensor(values, at::TensorOptions().dtype(at::kInt)).to(whole_TH.device());
    };
    const at::Tensor got = model.decode(
        *cache, {.tokens_T = upload(last), .slots_S = upload(slots), .lengths_S = upload(held)});
    for (std::size_t s = 0; s < sequences.size(); ++s) {
        compare(got.narrow(0, static_cast<std::int64_t>(s), 1), s, lengths[s] - 1);
    }
    return worst;
}

struct Run {
    double seconds = 0;
    std::vector<std::vector<TokenId>> answers;
};

Run answer(Generator& generator,
           const Options& options,
           const Sampling& sampling,
           std::int64_t new_tokens) {
    Run run;
    run.answers.resize(static_cast<std::size_t>(options.batch));
    const std::int64_t prompt = std::max<std::int64_t>(1, options.context - options.steps / 2);
    std::int64_t next = 0;
    const auto begin = std::chrono::steady_clock::now();
    generator.run(
        [&]() -> std::optional<GenerationRequest> {
            if (next == options.batch) {
                return std::nullopt;
            }
            const std::int64_t id = next++;
            return GenerationRequest{.id = id,
                                     .prompt = some_tokens(prompt, id),
                                     .max_new_tokens = new_tokens,
                                     .sampling = sampling,
                                     .seed = 1,
                                     .sequence = static_cast<std::uint64_t>(id)};
        },
        [&](Generation generation) {
            run.answers[static_cast<std::size_t>(generation.id)] = std::move(generation.tokens);
        });
    run.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    return run;
}

/// A drafter of the target's shape that taps five of its layers.
model::DraftConfig drafter_of(const TargetConfig& target, const Options& options) {
    constexpr std::int64_t kTaps = 5;
    model::DraftConfig config;
    config.hidden_size = target.hidden_size;
    config.intermediate_size = target.intermediate_size;
    config.num_heads = target.num_heads;
    config.num_kv_heads = target.num_kv_heads;
    config.head_dim = target.head_dim;
    config.vocab_size = target.vocab_size;
    config.block_size = options.block;
    config.mask_token_id = static_cast<TokenId>(target.vocab_size - 1);
    config.num_target_layers = target.num_layers;
    for (std::int64_t k = 0; k < std::min(kTaps, target.num_layers); ++k) {
        config.target_layer_ids.push_back(k * (target.num_layers - 1) / kTaps);
    }
    config.layer_types.assign(static_cast<std::size_t>(options.draft_layers),
                              model::LayerType::Full);
    return config;
}

/// Seconds of one of many calls that are queued one behind another.
double seconds_of(const std::function<void()>& call) {
    constexpr int kCalls = 20;
    call();
    c10::cuda::getCurrentCUDAStream().synchronize();
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < kCalls; ++i) {
        call();
    }
    c10::cuda::getCurrentCUDAStream().synchronize();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() / kCalls;
}

/// Passes of a round on their own, from graphs: the target's over the blocks, and the drafter's
/// over them and over the features of the last ones.
struct Passes {
    double target = 0;
    double drafter = 0;
};

Passes time_passes(TargetModel& model, eval::DrafterSource& drafter, const Options& options) {
    const std::int64_t S = options.batch;
    const std::int64_t B = options.block;
    const std::int64_t capacity = options.context + 2 * B;
    const auto cache = model.make_cache(S, capacity);
    drafter.allocate(S, capacity);
    const at::TensorOptions int32 = model.embed_VH().options().dtype(at::kInt);
    // Of each sequence slot, length and anchor; the other tokens are the anchor's again.
    const at::Tensor input_S3 = at::stack(
        {at::arange(S, int32), at::full({S}, options.context, int32), at::full({S}, 7, int32)}, 1);
    const at::Tensor features_KTH =
        at::randn({std::ssize(drafter.taps()), S * B, model.config().hidden_size},
                  model.embed_VH().options());
    const auto step_of = [](const at::Tensor& input) {
        return model::DraftStep{input.select(1, 0).contiguous(), input.select(1, 1).contiguous()};
    };
    tensor::StepGraphs target_pass([&](const at::Tensor& input) {
        const model::DraftStep step = step_of(input);
        return model.decode(*cache,
                            {.tokens_T = input.select(1, 2).unsqueeze(1).expand({-1, B}).flatten(),
                             .slots_S = step.slots_S,
                             .lengths_S = step.lengths_S});
    });
    tensor::StepGraphs drafter_pass([&](const at::Tensor& input) {
        const model::DraftStep step = step_of(input);
        drafter.absorb_blocks(features_KTH.narrow(1, 0, B * input.size(0)), step);
        return drafter.states(step, input.select(1, 2).contiguous());
    });
    const at::Tensor nobody_3 = at::zeros({3}, int32);
    nobody_3[0].fill_(S);
    target_pass.capture(S, nobody_3, nullptr);
    drafter_pass.capture(S, nobody_3, &target_pass);
    return {.target = seconds_of([&] { target_pass.run(input_S3); }),
            .drafter = seconds_of([&] {
                drafter.choose(drafter_pass.run(input_S3),
                               std::vector<eval::SequenceView>(static_cast<std::size_t>(S)),
                               {});
            })};
}

/// Seconds of a round, and the mean acceptance length of the run.
std::pair<double, double> time_rounds(TargetModel& model,
                                      eval::DraftSource& source,
                                      const Options& options,
                                      bool graphs) {
    std::vector<eval::DecodeTask> tasks;
    const std::int64_t prompt = std::max<std::int64_t>(1, options.context - options.steps / 2);
    for (std::int64_t id = 0; id < options.batch; ++id) {
        tasks.push_back({id, some_tokens(prompt, id), options.steps + 1});
    }
    eval::RoundDecoder decoder(
        model, options.batch, eval::slot_capacity(tasks, {}, source.block_size()));
    decoder.prepare(source, graphs ? eval::RoundShapes::Graphs : eval::RoundShapes::Exact);
    decoder.decode(source, tasks, {.slots = options.batch});
    const eval::DecodeRun run = decoder.decode(source, tasks, {.slots = options.batch});
    std::size_t rounds = 0;
    for (const eval::DecodedText& text : run.texts) {
        rounds = std::max(rounds, text.rounds.size());
    }
    return {run.rounds_s / static_cast<double>(rounds),
            static_cast<double>(run.round_tokens()) / static_cast<double>(run.target_calls())};
}

void bench_rounds(DenseTarget& model,
                  const std::shared_ptr<tensor::RowOps>& row_ops,
                  double plain_step,
                  const Options& options) {
    const model::DraftConfig config = drafter_of(model.config(), options);
    const at::Device device = model.embed_VH().device();
    model::DraftWeights weights(config, device, at::kBFloat16, model::DraftWeights::Use::Inference);
    for (std::size_t i = 0; i < weights.specs().size(); ++i) {
        at::Tensor weight = weights.weight(static_cast<std::int64_t>(i));
        if (weight.dim() == 1) {
            weight.fill_(1);
        } else {
            weight.normal_(0, 0.02);
        }
    }
    model::DraftDecoder decoder(
        config, {model.embed_VH(), model.head_VH()}, std::move(weights), row_ops);
    eval::DrafterSource drafter(decoder, options.block);
    const Passes passes = time_passes(model, drafter, options);
    fmt::print("rounds of {} slots, drafter of {} layers, {} taps:\n",
               options.block,
               config.num_layers(),
               config.num_features());
    for (const bool graphs : {true, false}) {
        const auto [round, tau] = time_rounds(model, drafter, options, graphs);
        fmt::print("{:<30} {:7.2f} ms/round", graphs ? "  graphs" : "  eager", round * 1e3);
        if (graphs) {
            fmt::print(": target {:.2f}, drafter {:.2f}, verdict and host {:.2f}",
                       passes.target * 1e3,
                       passes.drafter * 1e3,
                       (round - passes.target - passes.drafter) * 1e3);
        }
        fmt::print("; {:.2f} plain steps, so a tau of {:.2f} breaks even (here {:.2f})\n",
                   round / plain_step,
                   round / plain_step,
                   tau);
    }
}

void bench(const Options& options) {
    const gpu::Device device = gpu::parse_devices("0").front();
    train::set_up_torch_process();
    train::set_up_torch(device);
    fmt::print("{}\n", gpu::describe(device));
    Kernels kernels(device);
    const TargetConfig config =
        options.model == "smollm2" ? smollm2(options.layers) : qwen3_8b(options.layers);
    const at::TensorOptions bf16 = at::TensorOptions().device(at::kCUDA, 0).dtype(at::kBFloat16);
    const auto row_ops = std::make_shared<tensor::KernelRowOps>(
        bf16.device(), [&](const kernels::KernelSpec& spec) { return kernels.find(spec); });
    DenseTarget model(config, random_weights(config, bf16), row_ops);
    fmt::print("whole forward against cached: largest difference / rms {:.4f}\n",
               largest_difference(model));

    const std::int64_t unread = config.tied ? 0 : config.vocab_size * config.hidden_size * 2;
    const double weights = static_cast<double>(model.weight_bytes() - unread);
    const double cached = static_cast<double>(options.batch * options.context) *
                          static_cast<double>(cache_bytes_per_token(config, at::kBFloat16));
    const double limit_s = (weights + cached) / (static_cast<double>(options.peak_gbps) * 1e9);
    fmt::print(
        "batch {}, context {}: {:.1f} GB of weights, {:.1f} GB of keys and values a step; "
        "limit {:.2f} ms, {:.0f} tokens/s\n",
        options.batch,
        options.context,
        weights / 1e9,
        cached / 1e9,
        limit_s * 1e3,
        static_cast<double>(options.batch) / limit_s);

    constexpr std::int64_t kFew = 8;
    std::vector<std::vector<TokenId>> by_graph;
    double plain_step = 0;

    struct Case {
        const char* name;
        bool graphs;
        Sampling sampling;
    };

    for (const Case& c : {Case{"greedy, graphs", true, {}},
                          Case{"greedy, eager", false, {}},
                          Case{"top-k 20, top-p 0.95, graphs",
                               true,
                               {.temperature = 0.6, .top_p = 0.95, .top_k = 20}},
                          Case{"top-p 0.9, graphs", true, {.temperature = 0.6, .top_p = 0.9}}}) {
        const auto begin = std::chrono::steady_clock::now();
        Generator generator(model,
                            {.slots = options.batch,
                             .capacity = options.context + options.steps + kFew,
                             .prefill_tokens = 8192,
                             .stop_tokens = {},
                             .graphs = c.graphs});
        const double set_up =
            std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
        answer(generator, options, c.sampling, kFew);  // warm up
        const Run few = answer(generator, options, c.sampling, kFew);
        const Run many = answer(generator, options, c.sampling, kFew + options.steps);
        const double step = (many.seconds - few.seconds) / static_cast<double>(options.steps);
        fmt::print(
            "{:<30} {:7.2f} ms/step {:7.0f} tokens/s {:5.1f} % of the limit; prefill and "
            "{} steps {:.2f} s, set-up {:.2f} s",
            c.name,
            step * 1e3,
            static_cast<double>(options.batch) / step,
            100 * limit_s / step,
            kFew,
            few.seconds,
            set_up);
        if (by_graph.empty()) {
            by_graph = many.answers;
            plain_step = step;
        } else if (c.sampling.greedy()) {
            std::int64_t equal = 0;
            for (std::size_t i = 0; i < by_graph.size(); ++i) {
                equal += by_graph[i] == many.answers[i] ? 1 : 0;
            }
            fmt::print("; {} of {} answers as with graphs", equal, by_graph.size());
        }
        fmt::print("\n");
    }
    if (options.draft_layers > 0) {
        bench_rounds(model, row_ops, plain_step, options);
    }
}

}  // namespace
}  // namespace dflash::target

int main(int argc, char** argv) {
    try {
        dflash::target::bench(dflash::target::parse(argc, argv));
        return 0;
    } catch (const dflash::Error& error) {
        fmt::print(stderr, "{}\n", error.what());
        return dflash::exit_code(error.kind());
    } catch (const std::exception& error) {
        fmt::print(stderr, "{}\n", error.what());
        return 70;
    }
}
