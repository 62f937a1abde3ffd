// SPDX-License-Identifier: Apache-2.0
#include <dflash/core/error.hpp>
#include <dflash/core/log.hpp>
#include <dflash/core/text.hpp>
#include <dflash/report/console.hpp>
#include <dflash/target/generation_config.hpp>
#include <dflash/target/generator.hpp>
#include <dflash/tensor/bridge.hpp>
#include <dflash/train/generate.hpp>
#include <dflash/train/gpu_check.hpp>
#include <dflash/train/kernel_start.hpp>
#include <dflash/train/response_source.hpp>
#include <dflash/train/run_data.hpp>
#include <dflash/train/torch_worker.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <filesystem>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <map>
#include <mutex>
#include <thread>

namespace dflash::train {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::int64_t kMostSlotsCuda = 256;
constexpr std::int64_t kMostSlotsCpu = 16;
constexpr std::int64_t kPrefillTokensCuda = 8192;
constexpr std::int64_t kPrefillTokensCpu = 512;

double seconds_since(Clock::time_point begin) {
    return std::chrono::duration<double>(Clock::now() - begin).count();
}

target::Sampling choose_sampling(const target::GenerationConfig& config,
                                 const GenerateSettings& settings) {
    target::Sampling sampling = config.sampling;
    if (settings.temperature) {
        // A greedy model's file says nothing of the rest.
        sampling.temperature = *settings.temperature;
    }
    sampling.top_p = settings.top_p.value_or(sampling.top_p);
    sampling.top_k = settings.top_k.value_or(sampling.top_k);
    return sampling;
}

std::string describe(const target::Sampling& sampling) {
    return sampling.greedy() ? "greedy"
                             : fmt::format("temperature {}, top_p {}, top_k {}",
                                           sampling.temperature,
                                           sampling.top_p,
                                           sampling.top_k);
}

// What ends an answer: the model's own end tokens, and those that end a turn in the chat format.
std::vector<TokenId> stop_tokens_of(const RunText& text, const target::GenerationConfig& config) {
    std::vector<TokenId> tokens = config.stop_tokens;
    for (const std::string& end : text.format->text_marks().turn_ends) {
        const std::vector<TokenId> ids = text.tokenizer->encode(end).ids;
        if (ids.size() == 1) {
            tokens.push_back(ids.front());
        }
    }
    std::sort(tokens.begin(), tokens.end());
    tokens.erase(std::unique(tokens.begin(), tokens.end()), tokens.end());
    return tokens;
}

/// Everything that answers: workers, replicas, generators. Workers join before what their tasks use
/// goes.
class Answering : NonCopyable {
  public:
    Answering(const Settings& settings,
              const RunText& text,
              const std::vector<gpu::Device>& devices,
              std::vector<TokenId> stop_tokens,
              std::int64_t capacity);
    ~Answering();

    std::int64_t slots() const;

    /// Tokens a second of full batches, from a step of each device.
    double tokens_per_second();

    void start(ResponseSource& source);

    void stop() { stopping_ = true; }

    /// Waits up to that long for the end. Throws the first error of a worker.
    bool wait(std::chrono::milliseconds time);

    std::int64_t tokens_chosen() const;

  private:
    void load(const std::string& folder);
    void make_generators(const Settings& settings,
                         const std::vector<TokenId>& stop_tokens,
                         std::int64_t capacity);
    std::int64_t slots_on(const gpu::Device& device,
                          const Settings& settings,
                          std::int64_t capacity,
                          Bytes free) const;

    target::TargetConfig config_;
    FirstError first_error_;
    KernelStart kernels_;
    std::vector<std::unique_ptr<target::TargetModel>> models_;
    std::vector<std::unique_ptr<target::Generator>> generators_;
    std::vector<std::int64_t> slots_;
    std::atomic<bool> stopping_ = false;
    std::mutex mutex_;  // guards: running_
    std::condition_variable ended_;
    std::size_t running_ = 0;
    FirstError::Subscription wake_;
    std::vector<std::unique_ptr<gpu::Worker>> workers_;
};

Answering::Answering(const Settings& settings,
                     const RunText& text,
                     const std::vector<gpu::Device>& devices,
                     std::vector<TokenId> stop_tokens,
                     std::int64_t capacity)
    : config_(text.target),
      kernels_(devices, text.target, settings.cache, first_error_),
      wake_(first_error_.on_error([this] {
          const std::lock_guard lock(mutex_);
          stopping_ = true;
          ended_.notify_all();
      })) {
    set_up_torch_process();
    const bool enough_cores = std::thread::hardware_concurrency() >= devices.size();
    for (const gpu::Device& device : devices) {
        workers_.push_back(std::make_unique<gpu::Worker>(
            device,
            first_error_,
            gpu::WorkerOptions{.on_start = [device] { set_up_torch(device); },
                               .pin = enough_cores}));
    }
    kernels_.prepare(workers_);
    load(text.location.folder);
    make_generators(settings, stop_tokens, capacity);
    kernels_.seal();
}

// What CUDA made for a generator goes on the thread that made it. After a failure that thread takes
// no tasks any more, and has to end before anything goes that it may still use.
Answering::~Answering() {
    stopping_ = true;
    for (std::size_t i = 0; i < generators_.size() && !first_error_.failed(); ++i) {
        try {
            workers_[i]->call({"end"}, [&] { generators_[i].reset(); });
        } catch (...) {
            break;
        }
    }
    workers_.clear();
}

void Answering::load(const std::string& folder) {
    target::LoadOptions options;
    options.with_head = true;
    for (const auto& worker : workers_) {
        options.device = tensor::torch_device(worker->device());
        options.dtype = compute_dtype(worker->device());
        options.row_ops = kernels_.make_row_ops(worker->device());
        // The first replica reads the files; the others take the tensors from it.
        models_.push_back(worker->call({"load the target"}, [&] {
            auto model = models_.empty()
                             ? target::load_target(folder, options)
                             : target::replicate(*models_.front(), options.device, options.row_ops);
            synchronize_stream(worker->device());
            return model;
        }));
    }
}

std::int64_t Answering::slots_on(const gpu::Device& device,
                                 const Settings& settings,
                                 std::int64_t capacity,
                                 Bytes free) const {
    const at::ScalarType dtype = compute_dtype(device);
    const Bytes slot_bytes = capacity * target::cache_bytes_per_token(config_, dtype);
    // Logits, their probabilities and sums of a sequence, and what a layer needs for it.
    const Bytes step_bytes = config_.vocab_size * 40 + target::activation_bytes(config_, 1, dtype);
    const std::int64_t prefill = device.is_cuda() ? kPrefillTokensCuda : kPrefillTokensCpu;
    const Bytes fixed = 2 * target::activation_bytes(config_, prefill, dtype) + free / 16;
    const std::int64_t fit = (free - fixed) / (slot_bytes + step_bytes);
    const std::int64_t most = device.is_cuda() ? kMostSlotsCuda : kMostSlotsCpu;
    const std::int64_t wanted = settings.generate.batch.value_or(std::min(most, fit));
    if (fit < 1 || wanted > fit) {
        throw Error(ErrorKind::Config,
                    {.what = fmt::format("{} answers of {} tokens at a time need {}, {} are free "
                                         "beside the weights",
                                         std::max<std::int64_t>(1, wanted),
                                         capacity,
                                         format_bytes(std::max<std::int64_t>(1, wanted) *
                                                      (slot_bytes + step_bytes)),
                                         format_bytes(std::max<Bytes>(0, free - fixed))),
                     .where = device.name,
                     .cause = {},
                     .hint = "Make generate.batch, generate.max_new_tokens or "
                             "generate.max_prompt_tokens smaller"});
    }
    return wanted;
}

void Answering::make_generators(const Settings& settings,
                                const std::vector<TokenId>& stop_tokens,
                                std::int64_t capacity) {
    // Logical devices on one physical device share what is free, as it is before the first of them
    // takes anything.
    std::map<std::string, int> sharing;
    for (const auto& worker : workers_) {
        ++sharing[tensor::torch_device(worker->device()).str()];
    }
    std::vector<Bytes> free;
    for (const auto& worker : workers_) {
        free.push_back(gpu::memory_of(worker->device()).free_bytes /
                       sharing[tensor::torch_device(worker->device()).str()]);
    }
    for (std::size_t i = 0; i < workers_.size(); ++i) {
        const gpu::Device& device = workers_[i]->device();
        slots_.push_back(slots_on(device, settings, capacity, free[i]));
        target::GeneratorOptions options{
            .slots = slots_.back(),
            .capacity = capacity,
            .prefill_tokens = device.is_cuda() ? kPrefillTokensCuda : kPrefillTokensCpu,
            .stop_tokens = stop_tokens};
        generators_.push_back(workers_[i]->call({"prepare to answer"}, [&] {
            auto generator = std::make_unique<target::Generator>(*models_[i], std::move(options));
            synchronize_stream(device);
            return generator;
        }));
    }
}

std::int64_t Answering::slots() const {
    std::int64_t sum = 0;
    for (const std::int64_t slots : slots_) {
        sum += slots;
    }
    return sum;
}

double Answering::tokens_per_second() {
    double sum = 0;
    for (std::size_t i = 0; i < workers_.size(); ++i) {
        sum += workers_[i]->call({"time a step"}, [&] {
            const double seconds = generators_[i]->time_step();
            return static_cast<double>(slots_[i]) / std::max(seconds, 1e-9);
        });
    }
    return sum;
}

void Answering::start(ResponseSource& source) {
    running_ = workers_.size();
    for (std::size_t i = 0; i < workers_.size(); ++i) {
        workers_[i]->post({"answer prompts"}, [this, i, &source] {
            generators_[i]->run(
                [&source] { return source.next(); },
                [&source](target::Generation generation) { source.take(std::move(generation)); },
                [this] { return stopping_.load(); });
            const std::lock_guard lock(mutex_);
            --running_;
            ended_.notify_all();
        });
    }
}

bool Answering::wait(std::chrono::milliseconds time) {
    std::unique_lock lock(mutex_);
    ended_.wait_for(lock, time, [&] { return running_ == 0 || first_error_.failed(); });
    lock.unlock();
    first_error_.rethrow_if_failed();
    lock.lock();
    return running_ == 0;
}

std::int64_t Answering::tokens_chosen() const {
    std::int64_t sum = 0;
    for (const auto& generator : generators_) {
        sum += generator->tokens_chosen();
    }
    return sum;
}

/// What is told while answers come.
class AnswerProgress : NonCopyable {
  public:
    AnswerProgress(const Settings& settings, std::int64_t wanted, std::int64_t done_before)
        : line_every_(settings.report.line_every.seconds),
          wanted_(wanted),
          done_before_(done_before) {}

    void tell(const ResponseSums& sums, std::int64_t tokens) {
        const double elapsed = seconds_since(begin_);
        const std::string line = text(sums, tokens, elapsed);
        report::Console& console = report::console();
        if (elapsed - told_ > line_every_) {
            told_ = elapsed;
            log_info("{}", line);
        }
        if (console.block_space()) {
            console.show_block({line});
        }
    }

  private:
    std::string text(const ResponseSums& sums, std::int64_t tokens, double elapsed) const {
        std::int64_t done = sums.answered;
        for (const auto& [reason, count] : sums.dropped) {
            done += count;
        }
        std::string line = fmt::format("answers   {} of {} ({:.1f} %), {} tokens/s",
                                       format_count(done),
                                       format_count(wanted_),
                                       100.0 * static_cast<double>(done) /
                                           static_cast<double>(std::max<std::int64_t>(1, wanted_)),
                                       format_count(static_cast<std::int64_t>(
                                           static_cast<double>(tokens) / std::max(elapsed, 1e-3))));
        if (done > done_before_) {
            line += fmt::format(", {} left",
                                format_seconds(elapsed * static_cast<double>(wanted_ - done) /
                                               static_cast<double>(done - done_before_)));
        }
        return line;
    }

    double line_every_;
    std::int64_t wanted_;
    std::int64_t done_before_;
    Clock::time_point begin_ = Clock::now();
    double told_ = 0;
};

void print_rows(const ResponseSource& source, const Settings& settings) {
    const ResponseFigures& figures = source.figures();
    log_info("rows      {} ({}): {} to be answered, {} kept as they are, {} left out",
             format_count(figures.rows),
             format_bytes(figures.bytes),
             format_count(figures.asked),
             format_count(figures.kept),
             format_count(figures.num_left_out()));
    for (const auto& [reason, rows] : figures.left_out) {
        log_warning("{} {} left out ({}), the first: {}",
                    format_count(rows.rows),
                    rows.rows == 1 ? "row is" : "rows are",
                    reason,
                    escape_controls(rows.first));
    }
    const double bad = static_cast<double>(figures.num_left_out());
    if (bad > settings.data.max_bad_fraction * static_cast<double>(figures.rows)) {
        throw Error(ErrorKind::Data,
                    {.what = fmt::format("{} of {} rows cannot be answered, more than "
                                         "data.max_bad_fraction = {}",
                                         format_count(figures.num_left_out()),
                                         format_count(figures.rows),
                                         settings.data.max_bad_fraction),
                     .where = figures.left_out.begin()->second.first,
                     .cause = {},
                     .hint = "Correct the rows, or allow more: --set data.max_bad_fraction=1"});
    }
    if (figures.asked == 0) {
        throw Error(ErrorKind::Data,
                    {.what = fmt::format("nothing to answer: all {} rows have their answers, or "
                                         "are finished text",
                                         format_count(figures.rows)),
                     .where = settings.run.data,
                     .cause = {},
                     .hint = "--all writes the answers anew that rows have"});
    }
}

// Upper bounds, and what is free.
void print_plan(const ResponseSource& source,
                const Settings& settings,
                const ResponseJournal& journal,
                double tokens_per_second) {
    const ResponseFigures& figures = source.figures();
    const std::int64_t wanted = source.num_wanted();
    const std::int64_t left = wanted - journal.num_done();
    const auto most_tokens = static_cast<double>(figures.turns * settings.generate.samples *
                                                 settings.generate.max_new_tokens) *
                             static_cast<double>(left) / static_cast<double>(wanted);
    constexpr double kBytesPerToken = 5;
    // The journal and the output that is made of it.
    const double most_bytes = 2 * (static_cast<double>(figures.bytes * settings.generate.samples) +
                                   kBytesPerToken * most_tokens);
    const std::filesystem::path folder =
        std::filesystem::absolute(settings.run.output).parent_path();
    std::error_code ignored;
    const auto space = std::filesystem::space(folder, ignored);
    log_info(
        "plan      {} answers, {} prompt tokens; at most {} tokens of answers in {}, and {} "
        "of disk ({} free)",
        format_count(left),
        format_count(figures.prompt_tokens * settings.generate.samples),
        format_count(static_cast<std::int64_t>(most_tokens)),
        format_seconds(most_tokens / std::max(tokens_per_second, 1e-9)),
        format_bytes(static_cast<std::int64_t>(most_bytes)),
        ignored ? std::string("?") : format_bytes(static_cast<std::int64_t>(space.available)));
    if (!ignored && most_bytes > static_cast<double>(space.available)) {
        log_warning("the answers may need more than the {} that are free in {}",
                    format_bytes(static_cast<std::int64_t>(space.available)),
                    folder.string());
    }
}

void print_summary(const ResponseSource& source,
                   const Settings& settings,
                   double seconds,
                   std::int64_t tokens) {
    const ResponseSums sums = source.sums();
    const auto answered = static_cast<double>(std::max<std::int64_t>(1, sums.answered));
    log_info("done      {} answers, {} tokens each; {} tokens in {}, {} tokens/s",
             format_count(sums.answered),
             format_count(static_cast<std::int64_t>(static_cast<double>(sums.tokens) / answered)),
             format_count(tokens),
             format_seconds(seconds),
             format_count(
                 static_cast<std::int64_t>(static_cast<double>(tokens) / std::max(seconds, 1e-3))));
    for (const auto& [reason, count] : sums.dropped) {
        log_warning("{} answers were dropped: {}", format_count(count), reason);
    }
    if (sums.cut > 0) {
        log_warning(
            "{} answers ({:.1f} %) were cut at the end of their room and have "
            "finish_reason \"length\"; a larger generate.max_new_tokens lets them end",
            format_count(sums.cut),
            100.0 * static_cast<double>(sums.cut) / answered);
    }
    if (sums.inexact > 0) {
        log_warning(
            "{} answers ({:.1f} %) are not written back by the chat format as the model "
            "wrote them (white space, marks)",
            format_count(sums.inexact),
            100.0 * static_cast<double>(sums.inexact) / answered);
    }
    if (source.turns_left() > 0) {
        log_warning("{} later turns were not asked: the conversation was too long or cut",
                    format_count(source.turns_left()));
    }
    log_info("output    {}", settings.run.output);
    log_info("next      dflash --target {} --data {}",
             shell_word(settings.run.target),
             shell_word(settings.run.output));
}

std::string join_names(const std::vector<gpu::Device>& devices) {
    std::vector<std::string> names;
    for (const gpu::Device& device : devices) {
        names.push_back(device.name);
    }
    return fmt::format("{}", fmt::join(names, " "));
}

ResponseOptions response_options(const Settings& settings,
                                 bool all,
                                 const RunText& text,
                                 const target::Sampling& sampling) {
    const GenerateSettings& generate = settings.generate;
    ResponseOptions options;
    options.choice = all ? data::AnswerChoice::All : data::AnswerChoice::Missing;
    options.thinking = generate.thinking == "on"    ? ThinkingMode::On
                       : generate.thinking == "off" ? ThinkingMode::Off
                                                    : ThinkingMode::Mixed;
    options.samples = generate.samples;
    options.max_new_tokens = generate.max_new_tokens;
    options.max_prompt_tokens = generate.max_prompt_tokens;
    options.context = text.target.max_position_embeddings;
    options.max_repeated = generate.max_repeated;
    options.sampling = sampling;
    options.seed = static_cast<std::uint64_t>(settings.run.seed);
    options.render = settings.data.render;
    options.num_threads = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
    return options;
}

ResponseIdentity identity_of(const Settings& settings,
                             bool all,
                             const RunText& text,
                             const target::Sampling& sampling,
                             const ResponseSource& source) {
    const GenerateSettings& generate = settings.generate;
    return {{"target", text.location.name + " " + text.location.revision},
            {"data", source.content_hash()},
            {"chat format", std::string(text.format->name())},
            {"sampling", describe(sampling)},
            {"seed", std::to_string(settings.run.seed)},
            {"answers", all ? "all" : "missing"},
            {"generate.thinking", generate.thinking},
            {"generate.samples", std::to_string(generate.samples)},
            {"generate.max_new_tokens", std::to_string(generate.max_new_tokens)},
            {"generate.max_prompt_tokens", std::to_string(generate.max_prompt_tokens)},
            {"generate.max_repeated", fmt::format("{}", generate.max_repeated)}};
}

}  // namespace

int generate(const GenerateRequest& request, StopSignals& signals) {
    const Settings& settings = request.settings;
    if (settings.run.output.empty()) {
        throw Error(ErrorKind::Config,
                    {.what = "no output file",
                     .where = {},
                     .cause = {},
                     .hint = "Name a file for the answers: --output answers.jsonl"});
    }
    const std::vector<data::DataFile> files = data::parse_data_list(settings.run.data);
    if (files.empty()) {
        throw Error(ErrorKind::Config,
                    {.what = "no rows to answer",
                     .where = {},
                     .cause = {},
                     .hint = "Name a JSON-lines file with --data prompts.jsonl"});
    }
    const std::vector<gpu::Device> devices = gpu::parse_devices(settings.run.gpus);
    check_gpus(devices);
    const RunText text = open_text(settings);
    target::judge_target(text.location.folder);
    const auto config = target::GenerationConfig::read(text.location.folder, text.target);
    const target::Sampling sampling = choose_sampling(config, settings.generate);
    const std::vector<TokenId> stop_tokens = stop_tokens_of(text, config);
    log_info("target    {} ({})", text.location.name, text.location.folder);
    log_info("format    {} ({})", text.format->name(), text.format_origin);
    ResponseSource source(files,
                          text,
                          response_options(settings, request.all, text, sampling),
                          dataset_options(settings).files);
    log_info("sampling  {}{}{}",
             describe(sampling),
             config.found ? "" : " (there is no generation_config.json)",
             source.can_choose_thinking() ? ", thinking " + settings.generate.thinking : "");
    for (const std::string& ignored : config.ignored) {
        log_warning("generation_config.json asks for {}, which is not followed", ignored);
    }
    if (stop_tokens.empty()) {
        log_warning(
            "neither the target nor its chat format names a token that ends an answer: "
            "all answers are cut at generate.max_new_tokens");
    }
    print_rows(source, settings);

    ResponseJournal journal(settings.run.output,
                            identity_of(settings, request.all, text, sampling, source),
                            source.num_tasks());
    source.set_journal(journal);
    if (journal.resumed() > 0) {
        log_info("resumed   {} answers are there, in {}",
                 format_count(journal.resumed()),
                 journal.folder());
    }
    Clock::time_point begin = Clock::now();
    std::int64_t tokens = 0;
    if (journal.num_done() < source.num_wanted()) {
        Answering answering(settings, text, devices, stop_tokens, source.capacity());
        log_info("devices   {}: {} answers of up to {} tokens at a time",
                 join_names(devices),
                 format_count(answering.slots()),
                 format_count(source.capacity()));
        print_plan(source, settings, journal, answering.tokens_per_second());
        begin = Clock::now();
        AnswerProgress progress(settings, source.num_wanted(), journal.resumed());
        answering.start(source);
        constexpr std::chrono::milliseconds kLook(200);
        while (!answering.wait(kLook)) {
            if (signals.stop_requested()) {
                answering.stop();
            }
            progress.tell(source.sums(), answering.tokens_chosen());
        }
        tokens = answering.tokens_chosen();
        report::console().clear_block();
    }
    if (journal.num_done() < source.num_wanted()) {
        log_info("stopped   {} of {} answers are kept in {}; the same command goes on:",
                 format_count(journal.num_done()),
                 format_count(source.num_wanted()),
                 journal.folder());
        log_info("          {}", request.command_line);
        return signals.stop_signal.load() == SIGINT ? 130 : 143;
    }
    source.publish();
    print_summary(source, settings, seconds_since(begin), tokens);
    return 0;
}

}  // namespace dflash::train
