// SPDX-License-Identifier: Apache-2.0
#include <dflash/core/error.hpp>
#include <dflash/core/first_error.hpp>
#include <dflash/core/text.hpp>
#include <dflash/gpu/worker.hpp>
#include <dflash/target/generation_config.hpp>
#include <dflash/tensor/bridge.hpp>
#include <dflash/train/acceptance_run.hpp>
#include <dflash/train/acceptance_texts.hpp>
#include <dflash/train/acceptance_warnings.hpp>
#include <dflash/train/checkpoint.hpp>
#include <dflash/train/decoding_pool.hpp>
#include <dflash/train/draft_fit.hpp>
#include <dflash/train/gpu_check.hpp>
#include <dflash/train/kernel_start.hpp>
#include <dflash/train/stop_tokens.hpp>
#include <dflash/train/torch_worker.hpp>
#include <dflash/train/watchdog.hpp>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fmt/format.h>
#include <map>
#include <thread>

namespace dflash::train {
namespace {

/// By rule; training has fewer.
constexpr std::int64_t kEvalPrompts = 64;
constexpr std::int64_t kEvalTokens = 256;

/// Texts that are judged as training does: every token of each is an anchor.
constexpr std::size_t kJudgedTexts = 32;

/// The last round of a text is one of at least so many: what depends on its end is of little
/// weight.
constexpr std::int64_t kBlocksOfAnswer = 4;

constexpr int kWarmUpRounds = 2;  // of each number of sequences

[[noreturn]] void reject(std::string what, std::string hint) {
    throw Error(ErrorKind::Config,
                {.what = std::move(what), .where = {}, .cause = {}, .hint = std::move(hint)});
}

/// The folder that holds the drafter's own config.json.
std::string find_draft(const std::string& name) {
    namespace fs = std::filesystem;
    const std::string folder = target::find_target(name).folder;
    if (fs::exists(fs::path(folder) / "config.json")) {
        return folder;
    }
    for (const char* inner : {"best/draft", "latest/draft", "draft"}) {
        if (fs::exists(fs::path(folder) / inner / "config.json")) {
            reject(fmt::format("{} is the folder of a run, not of a drafter", folder),
                   fmt::format("Name its drafter: --draft {}",
                               shell_word((fs::path(folder) / inner).string())));
        }
    }
    return folder;
}

LoadedDraft load_fitting_draft(const AcceptanceRequest& request,
                               const std::string& folder,
                               const target::TargetConfig& target) {
    LoadedDraft draft = load_draft(folder);
    check_fits(draft.config, target, folder);
    if (const auto block_size = request.settings.eval.block_size) {
        if (*block_size > draft.config.block_size) {
            reject(fmt::format("eval.block_size: got {}, expected 2 to {}, for which the drafter "
                               "was trained",
                               *block_size,
                               draft.config.block_size),
                   "A drafter may run with smaller blocks than it was trained for, not with larger "
                   "ones");
        }
        draft.config.block_size = *block_size;
    }
    return draft;
}

/// What by rule depends on who asks.
EvalSettings resolved(EvalSettings eval) {
    eval.acceptance_prompts = eval.acceptance_prompts.value_or(kEvalPrompts);
    if (*eval.acceptance_prompts == 0) {
        reject("eval.acceptance_prompts: got 0, expected 1 or more",
               fmt::format("Leave it out ({} prompts by rule) or say how many with --prompts; 0 "
                           "turns real decoding off in training only",
                           kEvalPrompts));
    }
    eval.acceptance_tokens = eval.acceptance_tokens.value_or(kEvalTokens);
    return eval;
}

/// Everything that decodes. Workers join before what their tasks use goes.
class Decoders : NonCopyable {
  public:
    Decoders(const AcceptanceRequest& request,
             const RunText& text,
             const LoadedDraft& draft,
             const std::vector<gpu::Device>& devices,
             Whereabouts& whereabouts,
             Watchdog& watchdog)
        : watch_(first_error_.on_error([&] { watchdog.run_failed(first_error_.get()); })),
          kernels_(devices, text.target, draft.config, request.settings.cache, first_error_) {
        set_up_torch_process();
        const bool enough_cores = std::thread::hardware_concurrency() >= devices.size();
        for (const gpu::Device& device : devices) {
            workers_.push_back(std::make_unique<gpu::Worker>(
                device,
                first_error_,
                gpu::WorkerOptions{.on_start = [device] { set_up_torch(device); },
                                   .pin = enough_cores}));
            whereabouts.add_worker({fmt::format("target and drafter {}", workers_.size() - 1),
                                    std::nullopt,
                                    workers_.back()->board()});
        }
        kernels_.prepare(workers_);
        std::vector<DecodingSite> sites = load(text.location.folder, draft.config);
        pool_ = std::make_unique<DecodingPool>(std::move(sites));
        pool_->set_weights(draft.flat_fp32);
        kernels_.seal();
    }

    DecodingPool& pool() { return *pool_; }

  private:
    std::vector<DecodingSite> load(const std::string& folder, const model::DraftConfig& config) {
        std::vector<DecodingSite> sites;
        for (const auto& worker : workers_) {
            const gpu::Device& device = worker->device();
            const target::LoadOptions options{.device = tensor::torch_device(device),
                                              .dtype = compute_dtype(device),
                                              .num_layers = 0,
                                              .with_head = true,
                                              .row_ops = kernels_.make_row_ops(device)};
            DecodingSite site;
            site.worker = worker.get();
            // The first replica reads the files; the others take the tensors from it.
            site.own_target = worker->call({"load the target"}, [&] {
                auto model =
                    sites.empty()
                        ? target::load_target(folder, options)
                        : target::replicate(*sites.front().target, options.device, options.row_ops);
                synchronize_stream(device);
                return model;
            });
            site.target = site.own_target.get();
            add_drafter(site, config, kernels_);
            sites.push_back(std::move(site));
        }
        return sites;
    }

    FirstError first_error_;
    FirstError::Subscription watch_;
    KernelStart kernels_;
    std::unique_ptr<DecodingPool> pool_;
    std::vector<std::unique_ptr<gpu::Worker>> workers_;
};

class Judge {
  public:
    Judge(const AcceptanceRequest& request,
          const EvalSettings& eval,
          const EvalPrompts& prompts,
          std::vector<TokenId> stop_tokens,
          DecodingPool& pool)
        : request_(request), prompts_(prompts), pool_(pool) {
        options_.rule = {
            {.temperature = eval.temperature, .top_p = eval.top_p, .top_k = eval.top_k},
            static_cast<std::uint64_t>(request.settings.run.seed)};
        options_.stop_tokens = std::move(stop_tokens);
        options_.slots = eval.batch;
        for (const EvalPrompt& prompt : prompts.prompts) {
            tasks_.push_back({prompt.row, prompt.tokens, *eval.acceptance_tokens});
        }
    }

    void run(const RunText& text, AcceptanceReport& report) {
        const eval::DecodeRun plain = decode("plain decoding", Decoding::Generator, report.plain);
        const eval::DecodeRun copied = decode("prompt look-up", Decoding::Lookup, report.lookup);
        const eval::DecodeRun drafted = decode("the drafter", Decoding::Drafter, report.drafter);
        if (options_.rule.sampling.greedy()) {
            report.greedy = compare(plain, drafted);
            compare(plain, copied);
            judge_written(drafted, report);
        }
        judge_answers(report);
        group(drafted, copied, report);
        show(text, plain, drafted, report);
    }

  private:
    eval::DecodeRun decode(const char* what, Decoding how, DecodingResult& result) {
        // Libraries load and allocate outside of what is timed; the generator does so by itself.
        if (how != Decoding::Generator) {
            pool_.warm_up(how, tasks_, options_, kWarmUpRounds);
        }
        auto last = std::chrono::steady_clock::now();
        eval::DecodeOptions options = options_;
        options.on_progress = [&](std::int64_t done, std::int64_t tokens) {
            const auto now = std::chrono::steady_clock::now();
            if (now - last > std::chrono::seconds(5)) {
                last = now;
                tell(fmt::format("{}: {} of {} prompts, {} tokens",
                                 what,
                                 done,
                                 tasks_.size(),
                                 format_count(tokens)));
            }
        };
        tell(what);
        eval::DecodeRun run = pool_.decode(how, tasks_, options);
        for (const eval::DecodedText& text : run.texts) {
            result.acceptance.add(text);
        }
        result.round_tokens = run.round_tokens();
        result.rounds_s = run.rounds_s;
        return run;
    }

    eval::GreedyComparison compare(const eval::DecodeRun& plain, const eval::DecodeRun& other) {
        return pool_.compare(
            tasks_, plain.texts, other.texts, [this](std::int64_t id) { return place_of(id); });
    }

    std::string place_of(std::int64_t row) const {
        const auto found = std::find_if(
            prompts_.prompts.begin(), prompts_.prompts.end(), [&](const EvalPrompt& prompt) {
                return prompt.row == row;
            });
        return found->place;
    }

    static TeacherForcedResult result_of(const JudgedTexts& judged) {
        return {judged.sums.texts(), judged.sums.right_by_slot(), judged.sums.walked_tau()};
    }

    void judge_written(const eval::DecodeRun& drafted, AcceptanceReport& report) {
        tell("the texts again, as training judges them");
        const JudgedTexts judged = pool_.judge(written_texts(tasks_, drafted.texts, kJudgedTexts));
        if (judged.sums.texts() > 0) {
            report.written = result_of(judged);
            report.agreement = judged.agreement;
        }
    }

    void judge_answers(AcceptanceReport& report) {
        const std::vector<JudgedText> texts =
            answered_texts(prompts_.prompts,
                           static_cast<std::size_t>(tasks_.front().max_new_tokens),
                           kJudgedTexts);
        if (!texts.empty()) {
            tell("the data's own answers, as training judges them");
            report.answers = result_of(pool_.judge(texts));
        }
    }

    void show(const RunText& text,
              const eval::DecodeRun& plain,
              const eval::DecodeRun& drafted,
              AcceptanceReport& report) const {
        for (std::size_t i = 0; i < tasks_.size() && std::ssize(report.shown) < request_.show;
             ++i) {
            report.shown.push_back(
                show_text(*text.tokenizer, prompts_.prompts[i], plain.texts[i], drafted.texts[i]));
        }
    }

    void group(const eval::DecodeRun& drafted,
               const eval::DecodeRun& copied,
               AcceptanceReport& report) const {
        std::map<std::string, PromptGroup> categories;
        std::map<std::string, PromptGroup> modes;
        const auto add = [&](std::map<std::string, PromptGroup>& groups,
                             const std::string& name,
                             std::size_t i) {
            const std::int64_t block_size = report.config.block_size;
            PromptGroup& group =
                groups
                    .try_emplace(
                        name,
                        PromptGroup{
                            name, 0, eval::Acceptance(block_size), eval::Acceptance(block_size)})
                    .first->second;
            ++group.prompts;
            group.drafter.add(drafted.texts[i]);
            group.lookup.add(copied.texts[i]);
        };
        for (std::size_t i = 0; i < prompts_.prompts.size(); ++i) {
            const EvalPrompt& prompt = prompts_.prompts[i];
            add(categories, prompt.category.empty() ? "none" : prompt.category, i);
            add(modes,
                !prompt.thinking   ? "not said"
                : *prompt.thinking ? "thinking"
                                   : "not thinking",
                i);
        }
        // One group says nothing that the whole does not.
        for (const auto& [from, to] :
             {std::pair(&categories, &report.categories), std::pair(&modes, &report.modes)}) {
            if (from->size() > 1) {
                for (const auto& [name, one] : *from) {
                    to->push_back(one);
                }
            }
        }
    }

    void tell(const std::string& line) const {
        if (request_.on_progress) {
            request_.on_progress(line);
        }
    }

    const AcceptanceRequest& request_;
    const EvalPrompts& prompts_;
    DecodingPool& pool_;
    std::vector<eval::DecodeTask> tasks_;
    eval::DecodeOptions options_;
};

void add_warnings(const EvalPrompts& prompts, AcceptanceReport& report) {
    if (prompts.other_rendering.count > 0) {
        report.warnings.push_back(fmt::format(
            "{} rows are rendered for training otherwise than for a server ({}): the drafter was "
            "trained on a template that serving does not use",
            format_count(prompts.other_rendering.count),
            prompts.other_rendering.example));
    }
    const std::vector<std::string> found = acceptance_warnings(
        report.drafter.acceptance.tau(),
        report.agreement,
        report.answers ? std::optional(report.answers->walked_tau) : std::nullopt);
    report.warnings.insert(report.warnings.end(), found.begin(), found.end());
    if (*report.eval.acceptance_tokens < kBlocksOfAnswer * report.config.block_size) {
        report.warnings.push_back(fmt::format(
            "answers of at most {} tokens have room for few rounds of {}: tau counts the drafts "
            "that a last round keeps behind the answer's end, the forward of training only rounds "
            "that end within it. Give --max-new-tokens {} or more to compare them",
            *report.eval.acceptance_tokens,
            report.config.block_size,
            kBlocksOfAnswer * report.config.block_size));
    }
}

}  // namespace

AcceptanceReport judge_acceptance(const AcceptanceRequest& request) {
    const Settings& settings = request.settings;
    const EvalSettings eval = resolved(settings.eval);
    Whereabouts whereabouts;
    Watchdog watchdog(whereabouts, {.after_s = settings.watchdog.after.seconds});
    const Activity::Scope activity(whereabouts.loop(), "prepare");
    const RunText text = open_text(settings);
    const std::string draft_folder = find_draft(request.draft);
    const LoadedDraft draft = load_fitting_draft(request, draft_folder, text.target);
    const EvalPrompts prompts =
        read_eval_prompts(settings.run.data,
                          text,
                          dataset_options(settings).files,
                          {.count = *eval.acceptance_prompts,
                           .seed = static_cast<std::uint64_t>(settings.run.seed),
                           .longest = longest_prompt(*eval.acceptance_tokens,
                                                     text.target.max_position_embeddings,
                                                     draft.config.max_position_embeddings),
                           .thinking = eval.thinking,
                           .render = settings.data.render});

    const std::vector<gpu::Device> devices = gpu::parse_devices(settings.run.gpus);
    check_gpus(devices);
    AcceptanceReport report{.target = text.location.name,
                            .draft = draft_folder,
                            .config = draft.config,
                            .eval = eval,
                            .seed = settings.run.seed,
                            .devices = {},
                            .num_prompts = std::ssize(prompts.prompts),
                            .num_rows = prompts.num_rows,
                            .left_out = prompts.left_out,
                            .drafter = {eval::Acceptance(draft.config.block_size)},
                            .lookup = {eval::Acceptance(draft.config.block_size)},
                            .plain = {eval::Acceptance(draft.config.block_size)},
                            .categories = {},
                            .modes = {},
                            .greedy = {},
                            .written = {},
                            .agreement = {},
                            .answers = {},
                            .shown = {},
                            .warnings = {}};
    for (const gpu::Device& device : devices) {
        report.devices.push_back(fmt::format("{}: {}", device.name, gpu::describe(device)));
    }
    const std::vector<TokenId> stop_tokens =
        answer_stop_tokens(target::GenerationConfig::read(text.location.folder, text.target),
                           *text.tokenizer,
                           *text.format);
    Decoders decoders(request, text, draft, devices, whereabouts, watchdog);
    whereabouts.loop().set("judge the drafter", Activity::kNoNumber, Activity::Kind::Waits);
    Judge(request, eval, prompts, stop_tokens, decoders.pool()).run(text, report);
    add_warnings(prompts, report);
    return report;
}

}  // namespace dflash::train
