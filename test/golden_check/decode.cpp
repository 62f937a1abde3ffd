// SPDX-License-Identifier: Apache-2.0
// Mode "decode": draft and verify at temperature 0, round by round, with the prompts side by side
// and one at a time.
#include "decode_case.hpp"

#include <dflash/eval/acceptance.hpp>
#include <dflash/eval/drafter_source.hpp>
#include <dflash/eval/greedy_check.hpp>
#include <dflash/io/json.hpp>
#include <dflash/io/safetensors.hpp>
#include <dflash/tensor/bridge.hpp>

#include <algorithm>
#include <cmath>
#include <memory>

namespace dflash::golden {
namespace {

std::vector<TokenId> tokens_of(const io::Json& list) {
    std::vector<TokenId> tokens;
    for (const io::Json& item : list.items()) {
        tokens.push_back(static_cast<TokenId>(item.to_integer().value()));
    }
    return tokens;
}

std::vector<ExpectedRun> read_runs(const io::Json& json, const std::string& where) {
    std::vector<ExpectedRun> runs;
    for (const io::Json& item : json.find("runs")->items()) {
        ExpectedRun run;
        run.prompt = tokens_of(*item.find("prompt"));
        run.max_new_tokens = item.require_integer("max_new_tokens", where);
        if (const io::Json& stop = *item.find("stop_token_ids"); stop.is_array()) {
            run.stop_tokens = tokens_of(stop);
        }
        run.emitted = tokens_of(*item.find("emitted"));
        for (const io::Json& round : item.find("rounds")->items()) {
            run.rounds.push_back({round.require_integer("start", where),
                                  tokens_of(*round.find("drafted")),
                                  round.require_integer("accepted", where),
                                  static_cast<TokenId>(round.require_integer("bonus", where))});
        }
        run.tau = item.require_number("tau", where);
        runs.push_back(std::move(run));
    }
    return runs;
}

/// Drafts up to the first that was refused: behind it rounding may decide.
std::vector<TokenId> judged_drafts(const eval::Round& round) {
    const auto count = std::min(round.drafted.size(), static_cast<std::size_t>(round.accepted + 1));
    return {round.drafted.begin(), round.drafted.begin() + static_cast<std::ptrdiff_t>(count)};
}

bool same(const eval::Round& a, const eval::Round& b) {
    return a.start == b.start && a.accepted == b.accepted && a.bonus == b.bonus &&
           judged_drafts(a) == judged_drafts(b);
}

/// Runs with the same stop tokens are decoded together, `slots` at a time.
std::vector<eval::DecodedText> decode_all(const DecodeCase& c,
                                          eval::DraftSource& source,
                                          std::int64_t slots) {
    const std::vector<ExpectedRun>& runs = c.runs;
    std::vector<eval::DecodedText> texts(runs.size());
    std::vector<bool> done(runs.size());
    for (std::size_t first = 0; first < runs.size(); ++first) {
        std::vector<eval::DecodeTask> tasks;
        for (std::size_t i = first; i < runs.size(); ++i) {
            if (!done[i] && runs[i].stop_tokens == runs[first].stop_tokens) {
                done[i] = true;
                // The reference begins a round as long as the anchor is a token that is kept, so a
                // last one may begin at the last token of all.
                tasks.push_back(
                    {static_cast<std::int64_t>(i), runs[i].prompt, runs[i].max_new_tokens + 1});
            }
        }
        eval::DecodeOptions options;
        options.stop_tokens = runs[first].stop_tokens;
        options.slots = slots;
        eval::DecodeRun run = eval::decode(*c.target, source, tasks, options);
        for (eval::DecodedText& text : run.texts) {
            texts[static_cast<std::size_t>(text.id)] = std::move(text);
        }
    }
    return texts;
}

void compare_texts(const std::string& how,
                   const DecodeCase& c,
                   const std::vector<eval::DecodedText>& texts,
                   Verdict& verdict) {
    const std::vector<ExpectedRun>& runs = c.runs;
    std::int64_t wrong_tokens = 0;
    std::int64_t all_tokens = 0;
    std::string where;
    for (std::size_t i = 0; i < runs.size(); ++i) {
        std::vector<TokenId> emitted = texts[i].emitted;
        emitted.resize(std::min(emitted.size(), static_cast<std::size_t>(runs[i].max_new_tokens)));
        all_tokens += std::ssize(runs[i].emitted);
        if (emitted != runs[i].emitted) {
            ++wrong_tokens;
            where = where.empty() ? fmt::format("run {}", i) : where;
        }
    }
    verdict.exact(how + ": texts", wrong_tokens, std::ssize(runs), where);
    verdict.note(fmt::format("{}: {} tokens", how, all_tokens));
}

void compare_rounds(const std::string& how,
                    const DecodeCase& c,
                    const std::vector<eval::DecodedText>& texts,
                    Verdict& verdict) {
    const std::vector<ExpectedRun>& runs = c.runs;
    std::int64_t wrong = 0;
    std::int64_t total = 0;
    std::string where;
    double tau_error = 0;
    eval::Acceptance all(c.block_size);
    for (std::size_t i = 0; i < runs.size(); ++i) {
        const std::size_t count = std::max(runs[i].rounds.size(), texts[i].rounds.size());
        for (std::size_t r = 0; r < count; ++r) {
            ++total;
            const bool both = r < runs[i].rounds.size() && r < texts[i].rounds.size();
            if (!both || !same(runs[i].rounds[r], texts[i].rounds[r])) {
                ++wrong;
                where = where.empty() ? fmt::format("run {} round {}", i, r) : where;
            }
        }
        eval::Acceptance one(c.block_size);
        one.add(texts[i]);
        all.add(texts[i]);
        tau_error = std::max(tau_error, std::abs(one.tau() - runs[i].tau));
    }
    verdict.exact(how + ": rounds", wrong, total, where);
    // Both are quotients of small integers in double precision.
    verdict.compare(how + ": tau of a run", tau_error, 1e-12, "any");
    verdict.compare(how + ": mean tau",
                    std::abs(all.tau() - c.mean_tau),
                    1e-12,
                    fmt::format("tau {:.4f}, {} rounds", all.tau(), all.rounds()));
}

}  // namespace

DecodeCase::DecodeCase(const std::string& folder,
                       at::Device device,
                       at::ScalarType dtype,
                       const std::function<std::shared_ptr<tensor::RowOps>()>& make_row_ops) {
    const io::Json json = io::read_json_file(folder + "/expected.json");
    runs = read_runs(json, folder);
    mean_tau = json.require_number("mean_tau", folder);
    block_size = json.require_integer("block_size", folder);
    target = target::load_target(folder + "/" + json.require_string("target", folder),
                                 {.device = device,
                                  .dtype = dtype,
                                  .num_layers = 0,
                                  .with_head = true,
                                  .row_ops = make_row_ops()});
    const std::string draft = folder + "/" + json.require_string("drafter", folder);
    const auto config =
        model::DraftConfig::from_json(io::read_json_file(draft + "/config.json"), draft);
    model::DraftWeights weights(config, device, dtype, model::DraftWeights::Use::Inference);
    const io::SafetensorsFile file(draft + "/model.safetensors");
    for (std::size_t i = 0; i < weights.specs().size(); ++i) {
        tensor::load_into(file.at(weights.specs()[i].name),
                          weights.weight(static_cast<std::int64_t>(i)),
                          file.path());
    }
    drafter = std::make_unique<model::DraftDecoder>(
        config,
        model::FrozenEnds{target->embed_VH(), target->head_VH()},
        std::move(weights),
        make_row_ops());
}

void check_decode(const std::string& case_folder, const Options& options, Verdict& verdict) {
    const DecodeCase c(case_folder, tensor::torch_device(options.device));
    eval::DrafterSource drafter(*c.drafter, c.block_size);
    eval::NoDrafts none;
    for (const std::int64_t slots : {std::int64_t{1}, std::int64_t{3}, std::ssize(c.runs)}) {
        const std::string how = fmt::format("{} at a time", slots);
        const auto drafted = decode_all(c, drafter, slots);
        compare_texts(how, c, drafted, verdict);
        compare_rounds(how, c, drafted, verdict);
        const auto plain = decode_all(c, none, slots);
        compare_texts(how + ", plain", c, plain, verdict);
        const eval::GreedyComparison comparison = eval::compare_greedy(
            plain, drafted, at::kFloat, [](std::int64_t id) { return fmt::format("run {}", id); });
        verdict.exact(how + ": ties", std::ssize(comparison.ties), comparison.texts, "");
        verdict.note(
            fmt::format("{}: {} tokens equal those of plain decoding; logits differ by up "
                        "to {:.2e}",
                        how,
                        comparison.tokens,
                        comparison.largest_rounding));
    }
}

}  // namespace dflash::golden
