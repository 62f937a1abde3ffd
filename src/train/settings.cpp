// SPDX-License-Identifier: Apache-2.0
#include <dflash/core/error.hpp>
#include <dflash/core/types.hpp>
#include <dflash/train/settings.hpp>

#include <fmt/format.h>
#include <limits>
#include <utility>

namespace dflash::train {
namespace {

/// Far above anything useful, and low enough that no product of them overflows: what a device
/// cannot hold is refused by the plan, with numbers.
constexpr double kMostTokens = 1 << 20;  // of a row or a document, as well as anchors
constexpr double kMostRows = 1 << 24;    // of a step or a window
constexpr double kLargestSize = 1 << 20;
constexpr double kMostHeads = 4096;  // also elements of one

}  // namespace

void RunSettings::declare(SettingList& list) {
    list.add("run.target",
             target,
             "target model: an HF folder, or ORG/NAME in the Hugging Face cache",
             {.maths = false});
    list.add("run.init",
             init,
             "drafter to start from: a folder or ORG/NAME; empty: random weights",
             {.maths = false});
    list.add("run.data",
             data,
             "training data: JSON-lines files (plain, .gz, .zst), \"a.jsonl,more/*.jsonl:0.5\"",
             {.maths = false});
    list.add("run.eval_data",
             eval_data,
             "held-out rows of their own; empty: eval.fraction of the data is held out",
             {.maths = false});
    list.add(
        "run.output", output, "run folder; empty: runs/<target>-<yyyymmdd-hhmm>", {.maths = false});
    list.add("run.gpus",
             gpus,
             "devices: all, 0-7, 0,2,5-7, 0,0,0 (three logical devices on GPU 0), cpu:N",
             {.maths = false});
    list.add("run.split",
             split,
             "T+D: number of targets and drafters; empty: the planner decides",
             {.maths = false});
    list.add("run.target_gpus",
             target_gpus,
             "positions in the list of devices that hold a target; empty: by the planner",
             {.maths = false});
    list.add("run.draft_gpus",
             draft_gpus,
             "positions in the list of devices that train the drafter; empty: by the planner",
             {.maths = false});
    list.add(
        "run.seed", seed, "seed of weights, order, anchors and held-out rows", {.at_least = 0});
}

void TrainSettings::declare(SettingList& list) {
    list.add("train.lr", lr, "peak learning rate", {.above = 0});
    list.add("train.betas",
             betas,
             "decay rates of AdamW's moments",
             {.at_least = 0, .at_most = 0.999999});
    list.add("train.eps", eps, "AdamW's epsilon", {.above = 0});
    list.add("train.weight_decay",
             weight_decay,
             "decoupled weight decay, on all weights",
             {.at_least = 0});
    list.add("train.clip", clip, "largest gradient norm; 0: no clipping", {.at_least = 0});
    list.add("train.schedule",
             schedule,
             "shape of the learning rate over the fraction done",
             {.one_of = {"cosine", "wsd"}});
    list.add("train.warmup_fraction",
             warmup_fraction,
             "share of the run in which the learning rate rises",
             {.at_least = 0, .at_most = 1});
    list.add("train.min_lr_fraction",
             min_lr_fraction,
             "learning rate at the end, as a share of the peak",
             {.at_least = 0, .at_most = 1});
    list.add("train.wsd_decay_fraction",
             wsd_decay_fraction,
             "share of the run in which WSD decays",
             {.at_least = 0, .at_most = 1});
    list.add("train.epochs", epochs, "passes over the data", {.at_least = 1, .unit = "epochs"});
    list.add("train.tokens",
             tokens,
             "tokens of packed rows to train on, instead of epochs",
             {.at_least = 1, .unit = "tokens"});
    list.add(
        "train.hours", hours, "hours to train, instead of epochs", {.above = 0, .unit = "hours"});
    list.add("train.max_steps",
             max_steps,
             "cuts the run short; the schedule does not see it",
             {.at_least = 1, .unit = "steps", .maths = false});
    list.add("train.rows_per_step",
             rows_per_step,
             "packed rows of one optimizer step, whatever the devices",
             {.at_least = 1, .at_most = kMostRows, .unit = "rows"});
    list.add("train.loss_weights",
             loss_weights,
             "weight of a slot in the loss; dpace: by what it adds to the expected acceptance, "
             "dpace-prefix and dpace-suffix one factor of it (docs/numerics.md)",
             {.one_of = {"decay", "uniform", "dpace", "dpace-prefix", "dpace-suffix"}});
    list.add("train.loss_decay_gamma",
             loss_decay_gamma,
             "decay: weight of slot k is exp(-(k-1)/gamma); by rule 7, 5, 4 for block size 16, 10, "
             "8, else the nearest; with dpace that of the held-out loss",
             {.above = 0});
    list.add("train.dpace_alpha",
             dpace_alpha,
             "dpace: probabilities q count as (1 - alpha) q + alpha; by rule 0.5",
             {.at_least = 0, .at_most = 1});
    list.add(
        "train.recompute_layers",
        recompute_layers,
        "layers of the drafter whose MLP the backward computes again instead of keeping it: less "
        "memory, more work (dflash plan says how much), the same result",
        {.at_least = 0, .at_most = 64, .unit = "layers", .maths = false});
    list.add(
        "train.products",
        products,
        "who makes the drafter's products of matrices on a GPU: cuBLASLt by the algorithm that "
        "it guesses, or by the one that was the fastest when the run started; or LibTorch. "
        "Equal to rounding (docs/numerics.md)",
        {.one_of = {"guessed", "timed", "torch"}, .maths = false});
}

void DraftSettings::declare(SettingList& list) {
    list.add(
        "draft.block_size",
        block_size,
        "slots of a block, the anchor's included; by rule 16, or that of the drafter to start from",
        {.at_least = 2, .at_most = 32});
    list.add("draft.num_layers",
             num_layers,
             "layers of the drafter; by rule 5, or those of the published drafter",
             {.at_least = 1, .at_most = 64});
    list.add("draft.target_layer_ids",
             target_layer_ids,
             "tapped layers of the target, from 0; by rule five evenly spaced ones",
             {.at_least = 0});
    list.add("draft.anchors",
             anchors,
             "most blocks of one document and epoch",
             {.at_least = 1, .at_most = kMostTokens, .unit = "per document"});
    list.add("draft.intermediate_size",
             intermediate_size,
             "inner size of the MLP; by rule the target's",
             {.at_least = 1, .at_most = kLargestSize});
    list.add("draft.num_heads",
             num_heads,
             "query heads; by rule from the target",
             {.at_least = 1, .at_most = kMostHeads});
    list.add("draft.num_kv_heads",
             num_kv_heads,
             "key and value heads; by rule from the target",
             {.at_least = 1, .at_most = kMostHeads});
    list.add("draft.head_dim",
             head_dim,
             "size of a head; by rule 128 (64 below hidden size 1024)",
             {.at_least = 2, .at_most = kMostHeads});
    list.add("draft.sliding_layers",
             sliding_layers,
             "indices of layers with a sliding window; by rule none",
             {.at_least = 0});
    list.add("draft.sliding_window",
             sliding_window,
             "window of sliding layers; by rule 2048",
             {.at_least = 1, .at_most = kMostTokens, .unit = "tokens"});
    list.add("draft.mask_token_id",
             mask_token_id,
             "row of the embedding for slots to be filled; by rule the first free one",
             {.at_least = 0, .at_most = std::numeric_limits<TokenId>::max()});
    list.add("draft.head_precision",
             head_precision,
             "products with the target's head in training: fp8-logits makes logits in 8 bits, fp8 "
             "their gradient, too; compute capability 9.0 (docs/numerics.md)",
             {.one_of = {"bf16", "fp8-logits", "fp8"}});
}

void DataSettings::declare(SettingList& list) {
    list.add("data.row_tokens",
             row_tokens,
             "a packed row closes at this many tokens ...",
             {.at_least = 2, .at_most = kMostTokens, .unit = "tokens"});
    list.add("data.row_anchors",
             row_anchors,
             "... or at this many anchors, whichever is first",
             {.at_least = 1, .at_most = kMostTokens, .unit = "anchors"});
    list.add("data.max_length",
             max_length,
             "samples are cut at this length",
             {.at_least = 2, .at_most = kMostTokens, .unit = "tokens"});
    list.add("data.window",
             window,
             "consecutive samples that are packed together",
             {.at_least = 1, .at_most = kMostRows, .unit = "samples"});
    list.add("data.max_bad_fraction",
             max_bad_fraction,
             "largest share of unusable rows",
             {.at_least = 0, .at_most = 1});
    list.add("data.min_trained_tokens",
             min_trained_tokens,
             "rows with fewer trained tokens are left out, and do not count as unusable",
             {.at_least = 1, .at_most = kMostTokens, .unit = "tokens"});
    list.add("data.responses",
             responses,
             "whose answers are trained: those of the data alone; those that are missing are the "
             "target's; or all are the target's",
             {.one_of = {"dataset", "missing", "regenerate"}});
    list.add("data.check_answers",
             check_answers,
             "rows whose answers are compared with the target's own before a new run; 0: none",
             {.at_least = 0, .at_most = kMostHeads, .unit = "rows", .maths = false});
    list.add("data.chat_format",
             chat_format,
             "chat format of the target; by rule recognised from its template");
    list.add("data.train_on_thinking",
             render.train_on_thinking,
             "whether the reasoning of answers is trained");
    list.add("data.train_on_tool_calls",
             render.train_on_tool_calls,
             "whether answers that call tools are trained");
    list.add("data.last_turn_only",
             render.last_turn_only,
             "train only what follows the last user message of a row");
    list.add("data.preserve_thinking",
             render.preserve_thinking,
             "whether earlier turns keep their reasoning (Qwen3.6, 3.8); by rule as the template");
    list.add("data.reasoning_effort",
             render.reasoning_effort,
             "effort that the system message asks for (Qwen3.8, gpt-oss); by rule as the template",
             {.one_of = {"low", "medium", "high", "xhigh"}});
    list.add("data.date",
             render.date,
             "date in the system message; by rule 26 Jul 2024 (Llama 3.1), 2025-08-05 (gpt-oss)");
    // The marks of data.chat_format = "generic".
    list.add("data.generic_begin", generic.begin, "generic: before the first message");
    list.add("data.generic_system_start", generic.system_start, "generic: before a system message");
    list.add("data.generic_system_end", generic.system_end, "generic: after a system message");
    list.add("data.generic_user_start", generic.user_start, "generic: before a user message");
    list.add("data.generic_user_end", generic.user_end, "generic: after a user message");
    list.add("data.generic_assistant_start", generic.assistant_start, "generic: before an answer");
    list.add("data.generic_assistant_end",
             generic.assistant_end,
             "generic: after an answer; trained up to the white space at its end");
    list.add("data.generic_tool_start", generic.tool_start, "generic: before a tool's result");
    list.add("data.generic_tool_end", generic.tool_end, "generic: after a tool's result");
}

void EvalSettings::declare(SettingList& list) {
    list.add("eval.fraction",
             fraction,
             "share of the samples that is held out: at least 16 (10 % of small sets), at most 512",
             {.at_least = 0, .at_most = 0.5});
    list.add("eval.every", every, "time between evaluations", {.above = 0, .maths = false});
    list.add("eval.max_fraction",
             max_fraction,
             "largest share of the time spent on evaluation, but for real decoding at the start "
             "and the end; where prompts are decoded, half of it at most is for the rest",
             {.at_most = 1, .above = 0, .maths = false});
    list.add("eval.acceptance_prompts",
             acceptance_prompts,
             "prompts that are really decoded; by rule 16 of the held-out rows in training (0: "
             "off), 64 in dflash eval",
             {.at_least = 0, .at_most = kMostRows, .maths = false});
    list.add("eval.acceptance_tokens",
             acceptance_tokens,
             "longest answer that is decoded; by rule 128 in training, 256 in dflash eval",
             {.at_least = 2, .at_most = kMostTokens, .unit = "tokens", .maths = false});
    list.add("eval.batch",
             batch,
             "prompts that are decoded at a time on a device",
             {.at_least = 1, .at_most = kMostHeads, .maths = false});
    list.add("eval.temperature",
             temperature,
             "dflash eval: of target and drafter; 0: greedy, as in training",
             {.at_least = 0, .at_most = 100, .maths = false});
    list.add("eval.top_p",
             top_p,
             "dflash eval: share of the likeliest tokens that is drawn from",
             {.at_most = 1, .above = 0, .maths = false});
    list.add("eval.top_k",
             top_k,
             "dflash eval: number of tokens that is drawn from, 0: all",
             {.at_least = 0, .at_most = kMostTokens, .maths = false});
    list.add("eval.block_size",
             block_size,
             "dflash eval: slots of a block, at most the drafter's own, which it is by rule",
             {.at_least = 2, .at_most = 32, .maths = false});
    list.add("eval.thinking",
             thinking,
             "dflash eval: whether prompts ask for reasoning; by rule as the row or the model has "
             "it",
             {.maths = false});
}

void GateSettings::declare(SettingList& list) {
    list.add("gate.every",
             every,
             "time between checks of a row's features against the target; 0: at the start only",
             {.at_least = 0, .maths = false});
    list.add("gate.tolerance",
             tolerance,
             "largest relative difference that is rounding; by rule 0.001 in fp32, 0.2 in bf16",
             {.above = 0, .maths = false});
}

void CheckpointSettings::declare(SettingList& list) {
    list.add("checkpoint.every", every, "time between saves", {.above = 0, .maths = false});
    list.add("checkpoint.keep",
             keep,
             "whole checkpoints that are kept, the newest",
             {.at_least = 1, .maths = false});
    list.add("checkpoint.keep_drafts",
             keep_drafts,
             "drafts that are kept besides, the best by held-out acceptance",
             {.at_least = 0, .maths = false});
    list.add("checkpoint.patience",
             patience,
             "how long the last save is tried again on a disk that cannot be written",
             {.at_least = 0, .maths = false});
}

void ReportSettings::declare(SettingList& list) {
    list.add("report.every",
             every,
             "time over which speeds and waits are means, and between two writings of status.json",
             {.above = 0, .maths = false});
    list.add("report.line_every",
             line_every,
             "time between lines with the figures of a step, on the screen and in console.log",
             {.above = 0, .maths = false});
}

void WatchdogSettings::declare(SettingList& list) {
    list.add("watchdog.after",
             after,
             "time without any progress after which a run ends with the report of who waits for "
             "whom",
             {.above = 0, .maths = false});
}

void HooksSettings::declare(SettingList& list) {
    list.add("hooks.metrics",
             metrics,
             "shell command that gets the lines of metrics.jsonl on its standard input",
             {.maths = false});
    list.add("hooks.checkpoint",
             checkpoint,
             "shell command to run after each save; {dir} is the folder of the checkpoint",
             {.maths = false});
    list.add("hooks.wait",
             wait,
             "at the end of a run, the longest wait for hooks.checkpoint to finish",
             {.at_least = 0, .maths = false});
}

void CacheSettings::declare(SettingList& list) {
    list.add("cache.dir",
             dir,
             "folder for what is made once: compiled kernels; empty: $XDG_CACHE_HOME/dflash or "
             "~/.cache/dflash",
             {.maths = false});
}

void GenerateSettings::declare(SettingList& list) {
    list.add("generate.thinking",
             thinking,
             "whether answers reason first, of families that can do both; mixed: half of them",
             {.one_of = {"mixed", "on", "off"}, .maths = false});
    list.add("generate.max_new_tokens",
             max_new_tokens,
             "longest answer; it is cut there",
             {.at_least = 1, .at_most = kMostTokens, .unit = "tokens", .maths = false});
    list.add("generate.max_prompt_tokens",
             max_prompt_tokens,
             "rows with a longer prompt are left out",
             {.at_least = 1, .at_most = kMostTokens, .unit = "tokens", .maths = false});
    list.add("generate.samples",
             samples,
             "answers to each prompt",
             {.at_least = 1, .at_most = 1024, .maths = false});
    list.add("generate.temperature",
             temperature,
             "0: always the likeliest token; by rule as generation_config.json says",
             {.at_least = 0, .maths = false});
    list.add("generate.top_p",
             top_p,
             "share of the likeliest tokens that is drawn from; by rule as generation_config.json",
             {.at_most = 1, .above = 0, .maths = false});
    list.add("generate.top_k",
             top_k,
             "number of tokens that is drawn from, 0: all; by rule as generation_config.json",
             {.at_least = 0, .at_most = kMostTokens, .maths = false});
    list.add("generate.batch",
             batch,
             "answers at a time on a device; by rule as many as fit its memory, at most 256",
             {.at_least = 1, .at_most = kMostHeads, .maths = false});
    list.add("generate.max_repeated",
             max_repeated,
             "answers in which more than this share of the 4-grams are repeated are dropped",
             {.at_least = 0, .at_most = 1, .maths = false});
    list.add("generate.shard_rows",
             shard_rows,
             "training on prompts: rows that are answered before training goes on with them",
             {.at_least = 1, .at_most = kMostRows, .unit = "rows", .maths = false});
}

SettingList Settings::list() {
    SettingList all;
    run.declare(all);
    train.declare(all);
    draft.declare(all);
    data.declare(all);
    eval.declare(all);
    gate.declare(all);
    checkpoint.declare(all);
    report.declare(all);
    watchdog.declare(all);
    hooks.declare(all);
    cache.declare(all);
    generate.declare(all);
    return all;
}

void check_settings(const Settings& settings) {
    const TrainSettings& train = settings.train;
    const auto reject = [](std::string what, std::string hint) {
        throw Error(ErrorKind::Config,
                    {.what = std::move(what), .where = {}, .cause = {}, .hint = std::move(hint)});
    };
    if (train.betas.size() != 2) {
        reject(fmt::format("train.betas: got {} numbers, expected 2", train.betas.size()), {});
    }
    if (train.hours && train.tokens) {
        reject("train.hours and train.tokens are both set",
               "A run has one length: set one of the two, or train.epochs");
    }
    if (train.loss_weights == "uniform" && train.loss_decay_gamma) {
        reject(
            "train.loss_decay_gamma is set, but train.loss_weights = \"uniform\" does not use it",
            "Remove one of the two");
    }
    if (train.dpace_alpha && !train.uses_dpace()) {
        reject(
            fmt::format("train.dpace_alpha is set, but train.loss_weights = \"{}\" does not use it",
                        train.loss_weights),
            "Remove one of the two");
    }
    if (!settings.run.eval_data.empty() && settings.eval.fraction == 0) {
        reject("run.eval_data is set, but eval.fraction = 0 turns evaluation off",
               "Remove one of the two");
    }
}

}  // namespace dflash::train
