// SPDX-License-Identifier: Apache-2.0
#include <dflash/core/error.hpp>
#include <dflash/core/first_error.hpp>
#include <dflash/core/text.hpp>
#include <dflash/eval/decode_rounds.hpp>
#include <dflash/eval/drafter_source.hpp>
#include <dflash/eval/prompt_lookup.hpp>
#include <dflash/eval/teacher_forced.hpp>
#include <dflash/gpu/worker.hpp>
#include <dflash/target/generation_config.hpp>
#include <dflash/target/target_model.hpp>
#include <dflash/tensor/bridge.hpp>
#include <dflash/train/acceptance_run.hpp>
#include <dflash/train/checkpoint.hpp>
#include <dflash/train/draft_fit.hpp>
#include <dflash/train/gpu_check.hpp>
#include <dflash/train/torch_worker.hpp>

#include <ATen/Parallel.h>
#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fmt/format.h>
#include <map>

namespace dflash::train {
namespace {

/// Texts that are judged as training does: every token of each is an anchor.
constexpr std::int64_t kJudgedTexts = 32;

constexpr std::int64_t kWarmUpTokens = 4;

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
    if (const auto block_size = request.options.block_size) {
        if (*block_size > draft.config.block_size) {
            reject(fmt::format("--block-size: got {}, expected 2 to {}, for which the drafter "
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

std::int64_t longest_prompt(const AcceptanceOptions& options,
                            const target::TargetConfig& target,
                            const model::DraftConfig& draft) {
    const std::int64_t context =
        std::min(target.max_position_embeddings, draft.max_position_embeddings);
    if (options.max_new_tokens >= context) {
        reject(fmt::format("--max-new-tokens: got {}, expected less than the context of {} "
                           "tokens (target {}, drafter {})",
                           options.max_new_tokens,
                           context,
                           target.max_position_embeddings,
                           draft.max_position_embeddings),
               "Answers need room for their prompts");
    }
    return context - options.max_new_tokens;
}

/// What decodes: models on one device, all of whose work is done on its worker.
struct Models {
    std::unique_ptr<target::TargetModel> target;
    std::unique_ptr<model::Drafter> drafter;  // of training
    std::unique_ptr<model::DraftDecoder> decoder;
};

Models load(const gpu::Device& device, const std::string& target_folder, const LoadedDraft& draft) {
    const at::Device on = tensor::torch_device(device);
    const at::ScalarType dtype = compute_dtype(device);
    Models models;
    models.target = target::load_target(
        target_folder, {.device = on, .dtype = dtype, .num_layers = 0, .with_head = true});
    const model::FrozenEnds ends{models.target->embed_VH(), models.target->head_VH()};
    models.drafter = std::make_unique<model::Drafter>(draft.config,
                                                      ends,
                                                      on,
                                                      dtype,
                                                      model::make_torch_paths(on),
                                                      model::DraftWeights::Use::Inference);
    models.drafter->weights().compute_flat().copy_(draft.flat_fp32);
    models.decoder = std::make_unique<model::DraftDecoder>(
        draft.config, ends, models.drafter->weights(), std::make_shared<tensor::TorchRowOps>());
    return models;
}

class Judge {
  public:
    Judge(const AcceptanceRequest& request,
          const EvalPrompts& prompts,
          std::vector<TokenId> stop_tokens,
          Models& models)
        : request_(request), prompts_(prompts), models_(models) {
        const AcceptanceOptions& eval = request.options;
        options_.rule = {
            {.temperature = eval.temperature, .top_p = eval.top_p, .top_k = eval.top_k},
            static_cast<std::uint64_t>(request.settings.run.seed)};
        options_.stop_tokens = std::move(stop_tokens);
        options_.slots = eval.batch;
        for (const EvalPrompt& prompt : prompts.prompts) {
            tasks_.push_back({prompt.row, prompt.tokens, eval.max_new_tokens});
        }
    }

    void run(AcceptanceReport& report) {
        const std::int64_t block_size = report.config.block_size;
        eval::NoDrafts none;
        eval::PromptLookup lookup(block_size);
        eval::DrafterSource drafter(*models_.decoder, block_size);
        const eval::DecodeRun plain = decode("plain decoding", none, report.plain, block_size);
        const eval::DecodeRun copied = decode("prompt look-up", lookup, report.lookup, block_size);
        const eval::DecodeRun drafted = decode("the drafter", drafter, report.drafter, block_size);
        if (options_.rule.sampling.greedy()) {
            report.greedy = compare(plain, drafted);
            compare(plain, copied);
            judge_written(drafted, report);
        }
        judge_answers(report);
        group(drafted, copied, report);
    }

  private:
    eval::DecodeRun decode(const char* what,
                           eval::DraftSource& source,
                           DecodingResult& result,
                           std::int64_t block_size) {
        // Libraries load and allocate outside of what is timed.
        eval::DecodeTask short_task = tasks_.front();
        short_task.max_new_tokens = std::min(kWarmUpTokens, short_task.max_new_tokens);
        eval::decode(*models_.target, source, std::span(&short_task, 1), options_);

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
        eval::DecodeRun run = eval::decode(*models_.target, source, tasks_, options);
        result.acceptance = eval::Acceptance(block_size);
        for (const eval::DecodedText& text : run.texts) {
            result.acceptance.add(text);
        }
        result.round_tokens = run.round_tokens();
        result.rounds_s = run.rounds_s;
        return run;
    }

    eval::GreedyComparison compare(const eval::DecodeRun& plain, const eval::DecodeRun& other) {
        return eval::compare_greedy(plain.texts,
                                    other.texts,
                                    models_.target->embed_VH().scalar_type(),
                                    [this](std::int64_t id) { return place_of(id); });
    }

    std::string place_of(std::int64_t row) const {
        const auto found = std::find_if(
            prompts_.prompts.begin(), prompts_.prompts.end(), [&](const EvalPrompt& prompt) {
                return prompt.row == row;
            });
        return found->place;
    }

    static TeacherForcedResult result_of(const eval::TeacherForced& judged, std::int64_t texts) {
        return {texts, judged.right_by_slot(), judged.walked_tau()};
    }

    void judge_written(const eval::DecodeRun& drafted, AcceptanceReport& report) {
        tell("the texts again, as training judges them");
        eval::TeacherForced judged(*models_.target, *models_.drafter);
        eval::RoundAgreement agreement;
        std::int64_t texts = 0;
        for (std::size_t i = 0; i < drafted.texts.size() && texts < kJudgedTexts; ++i) {
            if (drafted.texts[i].emitted.size() < 2) {
                continue;
            }
            agreement.add(judge(judged, prompts_.prompts[i].tokens, drafted.texts[i].emitted),
                          drafted.texts[i]);
            ++texts;
        }
        if (texts > 0) {
            report.written = result_of(judged, texts);
            report.compared_rounds = agreement.rounds;
            report.equal_rounds = agreement.equal;
        }
    }

    void judge_answers(AcceptanceReport& report) {
        eval::TeacherForced judged(*models_.target, *models_.drafter);
        std::int64_t texts = 0;
        for (const EvalPrompt& prompt : prompts_.prompts) {
            // As long as the answers that were decoded.
            std::vector<TokenId> answer = prompt.answer;
            answer.resize(
                std::min(answer.size(), static_cast<std::size_t>(request_.options.max_new_tokens)));
            if (answer.size() < 2 || texts == kJudgedTexts) {
                continue;
            }
            if (texts == 0) {
                tell("the data's own answers, as training judges them");
            }
            judge(judged, prompt.tokens, answer);
            ++texts;
        }
        if (texts > 0) {
            report.answers = result_of(judged, texts);
        }
    }

    static const eval::TeacherForcedText& judge(eval::TeacherForced& judged,
                                                const std::vector<TokenId>& prompt,
                                                const std::vector<TokenId>& answer) {
        std::vector<TokenId> tokens = prompt;
        tokens.insert(tokens.end(), answer.begin(), answer.end());
        return judged.add(tokens, std::ssize(prompt));
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
    Models& models_;
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
    const std::int64_t other = report.compared_rounds - report.equal_rounds;
    if (static_cast<double>(other) >
        kRoundsByRounding * static_cast<double>(report.compared_rounds)) {
        report.warnings.push_back(fmt::format(
            "{} of {} rounds kept another number of drafts than the forward of training has right "
            "on the same text, more than the {:.0f} % that rounding explains: decoding and "
            "training "
            "do not see the same features (layers, positions or mask token)",
            format_count(other),
            format_count(report.compared_rounds),
            100 * kRoundsByRounding));
    }
    const double real = report.drafter.acceptance.tau();
    if (report.answers && real < kLeastOfAnswers * report.answers->walked_tau) {
        report.warnings.push_back(fmt::format(
            "on the data's own answers the drafter is right for a tau of {:.2f}, but real decoding "
            "has {:.2f}, less than {:.0f} % of it: either the answers are not the target's own, or "
            "the prompts are rendered otherwise than the answers were made for",
            report.answers->walked_tau,
            real,
            100 * kLeastOfAnswers));
    }
}

}  // namespace

AcceptanceReport judge_acceptance(const AcceptanceRequest& request) {
    const Settings& settings = request.settings;
    const RunText text = open_text(settings);
    const std::string draft_folder = find_draft(request.draft);
    const LoadedDraft draft = load_fitting_draft(request, draft_folder, text.target);
    const EvalPrompts prompts =
        read_eval_prompts(settings.run.data,
                          text,
                          dataset_options(settings).files,
                          {.count = request.options.prompts,
                           .seed = static_cast<std::uint64_t>(settings.run.seed),
                           .longest = longest_prompt(request.options, text.target, draft.config),
                           .thinking = request.options.thinking,
                           .render = settings.data.render});

    const std::vector<gpu::Device> devices = gpu::parse_devices(settings.run.gpus);
    const gpu::Device device = devices.front();
    check_gpus({device});
    AcceptanceReport report{.target = text.location.name,
                            .draft = draft_folder,
                            .config = draft.config,
                            .options = request.options,
                            .seed = settings.run.seed,
                            .device = fmt::format("{}: {}", device.name, gpu::describe(device)),
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
                            .answers = {},
                            .warnings = {}};
    set_up_torch_process();
    FirstError first_error;
    const auto on_start = [device, threads = static_cast<int>(devices.size())] {
        set_up_torch(device);
        if (!device.is_cuda()) {
            at::set_num_threads(threads);
        }
    };
    gpu::Worker worker(device, first_error, {.on_start = on_start, .pin = false});
    const std::vector<TokenId> stop_tokens =
        target::GenerationConfig::read(text.location.folder, text.target).stop_tokens;
    worker.call({"judge the drafter"}, [&] {
        Models models = load(device, text.location.folder, draft);
        Judge(request, prompts, stop_tokens, models).run(report);
    });
    add_warnings(prompts, report);
    return report;
}

}  // namespace dflash::train
