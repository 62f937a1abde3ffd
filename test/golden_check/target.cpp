// SPDX-License-Identifier: Apache-2.0
// golden_check target: a checkpoint folder with expected.safetensors beside it. Every sequence of
// the file is run alone, then all of them in one packed row; then all of them are continued at the
// same time behind cached tokens.
//
// T tokens of a sequence, R rows whose hidden states are stored, H hidden size, L layers, V
// vocabulary.
#include "golden_check.hpp"

#include <dflash/core/error.hpp>
#include <dflash/core/types.hpp>
#include <dflash/io/safetensors.hpp>
#include <dflash/target/target_model.hpp>
#include <dflash/tensor/bridge.hpp>

#include <ATen/ATen.h>
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <memory>
#include <numeric>
#include <set>
#include <vector>

namespace dflash::golden {
namespace {

// fp32, dense targets. The tolerances that the reference data was made with; a second fp32
// implementation differs from it by a tenth.
constexpr double kHiddenMax = 1e-4;       // largest difference / rms, per layer
constexpr double kHiddenRms = 1e-5;       // rms of the difference / rms, per layer
constexpr double kLogitsMax = 1e-4;       // largest difference / rms
constexpr double kLogsumexp = 2e-5;       // absolute
constexpr double kArgmaxMargin = 5e-3;    // a smaller lead of the best logit does not decide
constexpr std::int64_t kLogitsRows = 64;  // rows of logits held at a time

struct Sequence {
    std::string name;  // "T0130"
    std::vector<TokenId> tokens;
    at::Tensor rows_R;         // int64
    at::Tensor hidden_LRH;     // L + 1 entries; the last one after the final norm
    at::Tensor logits_rows_Q;  // int64
    at::Tensor logits_QV;
    at::Tensor logsumexp_T;
    at::Tensor argmax_T;  // int64
    at::Tensor argmax_margin_T;
    std::vector<TokenId> greedy;
};

std::vector<TokenId> token_list(const at::Tensor& ids) {
    const at::Tensor flat = ids.to(at::kLong).contiguous();
    const auto* data = flat.const_data_ptr<std::int64_t>();
    std::vector<TokenId> list;
    for (std::int64_t i = 0; i < flat.numel(); ++i) {
        list.push_back(static_cast<TokenId>(data[i]));
    }
    return list;
}

std::vector<Sequence> read_sequences(const std::string& path) {
    const io::SafetensorsFile file(path);
    std::set<std::string> names;
    for (const io::TensorView& view : file.tensors()) {
        names.insert(view.name.substr(0, view.name.find('.')));
    }
    std::vector<Sequence> sequences;
    for (const std::string& name : names) {
        const auto numbers = [&](const char* key) {
            return tensor::load(file.at(name + "." + key), at::kCPU, at::kDouble);
        };
        const auto integers = [&](const char* key) {
            return tensor::load(file.at(name + "." + key), at::kCPU, at::kLong);
        };
        sequences.push_back({.name = name,
                             .tokens = token_list(integers("input_ids")),
                             .rows_R = integers("rows"),
                             .hidden_LRH = numbers("hidden_states"),
                             .logits_rows_Q = integers("logits_rows"),
                             .logits_QV = numbers("logits"),
                             .logsumexp_T = numbers("logsumexp"),
                             .argmax_T = integers("argmax"),
                             .argmax_margin_T = numbers("argmax_margin"),
                             .greedy = token_list(integers("greedy"))});
    }
    return sequences;
}

// What the model gives for one packed row: L + 1 entries [T, H] as in Sequence, and the raw output
// of the last layer.
struct Run {
    std::vector<at::Tensor> entries_TH;
    at::Tensor last_TH;
};

Run run_model(target::TargetModel& model, const std::vector<std::vector<TokenId>>& documents) {
    std::vector<TokenId> tokens;
    std::vector<std::int32_t> positions;
    std::vector<std::int32_t> starts = {0};
    for (const std::vector<TokenId>& document : documents) {
        tokens.insert(tokens.end(), document.begin(), document.end());
        for (std::size_t i = 0; i < document.size(); ++i) {
            positions.push_back(static_cast<std::int32_t>(i));
        }
        starts.push_back(static_cast<std::int32_t>(tokens.size()));
    }
    std::vector<std::int64_t> taps(static_cast<std::size_t>(model.config().num_layers));
    std::iota(taps.begin(), taps.end(), 0);

    const at::Tensor embed_VH = model.embed_VH();
    Run run;
    run.entries_TH.push_back(
        embed_VH
            .index_select(0, tensor::upload(std::span<const TokenId>(tokens), embed_VH.device()))
            .cpu());
    model.capture({.tokens = tokens, .positions = positions, .starts = starts},
                  taps,
                  [&](std::int64_t layer, const at::Tensor& residual_TH) {
                      if (layer == taps.back()) {
                          run.last_TH = residual_TH.clone();
                          run.entries_TH.push_back(model.final_norm(residual_TH).cpu());
                      } else {
                          run.entries_TH.push_back(residual_TH.cpu().clone());
                      }
                  });
    return run;
}

// Differences of two tensors in units of the rms of the expected one.
struct Difference {
    double max = 0;
    double rms = 0;
    std::int64_t worst = 0;  // flat index of the largest
};

Difference difference(const at::Tensor& got, const at::Tensor& expected) {
    const at::Tensor error = (got.to(at::kDouble) - expected).abs().flatten();
    const double scale = std::sqrt(expected.square().mean().item<double>());
    return {.max = error.max().item<double>() / scale,
            .rms = std::sqrt(error.square().mean().item<double>()) / scale,
            .worst = error.argmax().item<std::int64_t>()};
}

// NaN is worse than any number.
bool is_worse(double candidate, double than) {
    return std::isnan(candidate) || candidate > than;
}

void check_hidden(const Sequence& sequence,
                  const Run& run,
                  std::int64_t begin,
                  const std::string& label,
                  Verdict& verdict) {
    verdict.exact(
        label + "entries of hidden states",
        std::abs(static_cast<std::int64_t>(run.entries_TH.size()) - sequence.hidden_LRH.size(0)),
        sequence.hidden_LRH.size(0),
        "");
    double worst_max = -1;
    double worst_rms = -1;
    std::string where_max;
    std::string where_rms;
    const std::int64_t hidden_size = sequence.hidden_LRH.size(2);
    const auto entries =
        std::min(static_cast<std::int64_t>(run.entries_TH.size()), sequence.hidden_LRH.size(0));
    for (std::int64_t i = 0; i < entries; ++i) {
        const at::Tensor got =
            run.entries_TH[static_cast<std::size_t>(i)].index_select(0, sequence.rows_R + begin);
        const Difference found = difference(got, sequence.hidden_LRH.select(0, i));
        if (is_worse(found.max, worst_max)) {
            worst_max = found.max;
            const auto row = sequence.rows_R[found.worst / hidden_size].item<std::int64_t>();
            where_max = fmt::format("entry {} row {} column {}", i, row, found.worst % hidden_size);
        }
        if (is_worse(found.rms, worst_rms)) {
            worst_rms = found.rms;
            where_rms = fmt::format("entry {}", i);
        }
    }
    verdict.compare(label + "hidden states, max/rms", worst_max, kHiddenMax, where_max);
    verdict.compare(label + "hidden states, rms/rms", worst_rms, kHiddenRms, where_rms);
}

void check_logits(target::TargetModel& model,
                  const Sequence& sequence,
                  const Run& run,
                  std::int64_t begin,
                  const std::string& label,
                  Verdict& verdict) {
    const auto tokens = static_cast<std::int64_t>(sequence.tokens.size());
    const at::Tensor last_TH = run.last_TH.narrow(0, begin, tokens);
    const at::Tensor logits_QV =
        model.logits(last_TH.index_select(0, sequence.logits_rows_Q.to(last_TH.device()))).cpu();
    const Difference found = difference(logits_QV, sequence.logits_QV);
    const std::int64_t vocab = sequence.logits_QV.size(1);
    verdict.compare(label + "logits, max/rms",
                    found.max,
                    kLogitsMax,
                    fmt::format("row {} token {}",
                                sequence.logits_rows_Q[found.worst / vocab].item<std::int64_t>(),
                                found.worst % vocab));

    double worst_sum = -1;
    std::int64_t worst_row = 0;
    std::int64_t wrong = 0;
    std::int64_t decided = 0;
    std::string first_wrong;
    for (std::int64_t row = 0; row < tokens; row += kLogitsRows) {
        const std::int64_t rows = std::min(kLogitsRows, tokens - row);
        const at::Tensor logits_RV = model.logits(last_TH.narrow(0, row, rows)).cpu();
        const at::Tensor sums_R = logits_RV.to(at::kDouble).logsumexp(1);
        const at::Tensor best_R = logits_RV.argmax(1);
        for (std::int64_t i = 0; i < rows; ++i) {
            const double error =
                std::abs(sums_R[i].item<double>() - sequence.logsumexp_T[row + i].item<double>());
            if (is_worse(error, worst_sum)) {
                worst_sum = error;
                worst_row = row + i;
            }
            if (sequence.argmax_margin_T[row + i].item<double>() > kArgmaxMargin) {
                ++decided;
                if (best_R[i].item<std::int64_t>() !=
                    sequence.argmax_T[row + i].item<std::int64_t>()) {
                    first_wrong = wrong == 0 ? fmt::format("row {}", row + i) : first_wrong;
                    ++wrong;
                }
            }
        }
    }
    verdict.compare(
        label + "logsumexp, absolute", worst_sum, kLogsumexp, fmt::format("row {}", worst_row));
    verdict.exact(label + "argmax", wrong, decided, first_wrong);
}

// Greedy continuation by running the whole prefix for every token.
void check_greedy(target::TargetModel& model, const Sequence& sequence, Verdict& verdict) {
    std::vector<TokenId> prefix = sequence.tokens;
    std::int64_t wrong = 0;
    std::string first_wrong;
    for (std::size_t i = 0; i < sequence.greedy.size(); ++i) {
        const at::Tensor last_TH = run_model(model, {prefix}).last_TH;
        const at::Tensor logits_1V = model.logits(last_TH.narrow(0, last_TH.size(0) - 1, 1));
        const auto token = static_cast<TokenId>(logits_1V.argmax(1).item<std::int64_t>());
        if (token != sequence.greedy[i]) {
            first_wrong =
                wrong == 0
                    ? fmt::format("token {}: got {}, expected {}", i, token, sequence.greedy[i])
                    : first_wrong;
            ++wrong;
        }
        prefix.push_back(token);
    }
    verdict.exact(sequence.name + " greedy tokens",
                  wrong,
                  static_cast<std::int64_t>(sequence.greedy.size()),
                  first_wrong);
}

// The same by decoding: all prompts in one call, in slots of a reversed order, then one token each.
void check_decoding(target::TargetModel& model,
                    const std::vector<Sequence>& sequences,
                    Verdict& verdict) {
    std::size_t longest = 0;
    std::size_t steps = 0;
    for (const Sequence& sequence : sequences) {
        longest = std::max(longest, sequence.tokens.size());
        steps = std::max(steps, sequence.greedy.size());
    }
    const auto cache = model.make_cache(static_cast<std::int64_t>(sequences.size()),
                                        static_cast<std::int64_t>(longest + steps));
    std::vector<std::vector<TokenId>> next;
    std::vector<std::int32_t> slots;
    for (const Sequence& sequence : sequences) {
        next.push_back(sequence.tokens);
        slots.push_back(static_cast<std::int32_t>(sequences.size() - next.size()));
    }
    std::vector<std::vector<TokenId>> decoded(sequences.size());
    for (std::size_t step = 0; step < steps; ++step) {
        std::vector<TokenId> tokens;
        std::vector<std::int32_t> starts = {0};
        std::vector<std::int64_t> last;
        for (const std::vector<TokenId>& piece : next) {
            tokens.insert(tokens.end(), piece.begin(), piece.end());
            starts.push_back(static_cast<std::int32_t>(tokens.size()));
            last.push_back(static_cast<std::int64_t>(tokens.size()) - 1);
        }
        const at::Tensor residual_TH =
            model.extend(*cache, {.tokens = tokens, .starts = starts, .slots = slots}, {}, {});
        const at::Tensor best_S =
            model
                .logits(residual_TH.index_select(
                    0, tensor::upload(std::span<const std::int64_t>(last), residual_TH.device())))
                .argmax(1)
                .cpu();
        for (std::size_t s = 0; s < sequences.size(); ++s) {
            const auto token =
                static_cast<TokenId>(best_S[static_cast<std::int64_t>(s)].item<std::int64_t>());
            decoded[s].push_back(token);
            next[s] = {token};
        }
    }
    for (std::size_t s = 0; s < sequences.size(); ++s) {
        const Sequence& sequence = sequences[s];
        std::int64_t wrong = 0;
        std::string first_wrong;
        for (std::size_t i = 0; i < sequence.greedy.size(); ++i) {
            if (decoded[s][i] != sequence.greedy[i]) {
                first_wrong =
                    wrong == 0
                        ? fmt::format(
                              "token {}: got {}, expected {}", i, decoded[s][i], sequence.greedy[i])
                        : first_wrong;
                ++wrong;
            }
        }
        verdict.exact(sequence.name + " greedy tokens, decoded",
                      wrong,
                      static_cast<std::int64_t>(sequence.greedy.size()),
                      first_wrong);
    }
}

}  // namespace

void check_target(const std::string& folder, const Options& options, Verdict& verdict) {
    at::globalContext().setFloat32MatmulPrecision("highest");
    const std::unique_ptr<target::TargetModel> model =
        target::load_target(folder,
                            {.device = tensor::torch_device(options.device),
                             .dtype = at::kFloat,
                             .num_layers = 0,
                             .with_head = true});
    const std::vector<Sequence> sequences =
        read_sequences((std::filesystem::path(folder) / "expected.safetensors").string());

    std::vector<std::vector<TokenId>> all;
    for (const Sequence& sequence : sequences) {
        const Run run = run_model(*model, {sequence.tokens});
        check_hidden(sequence, run, 0, sequence.name + " ", verdict);
        check_logits(*model, sequence, run, 0, sequence.name + " ", verdict);
        check_greedy(*model, sequence, verdict);
        all.push_back(sequence.tokens);
    }
    const Run packed = run_model(*model, all);
    std::int64_t begin = 0;
    for (const Sequence& sequence : sequences) {
        check_hidden(sequence, packed, begin, sequence.name + " packed ", verdict);
        check_logits(*model, sequence, packed, begin, sequence.name + " packed ", verdict);
        begin += static_cast<std::int64_t>(sequence.tokens.size());
    }
    check_decoding(*model, sequences, verdict);
}

}  // namespace dflash::golden
