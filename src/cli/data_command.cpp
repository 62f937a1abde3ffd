// SPDX-License-Identifier: Apache-2.0
#include "data_command.hpp"

#include <dflash/cli/train_options.hpp>
#include <dflash/core/error.hpp>
#include <dflash/core/text.hpp>
#include <dflash/data/sample_view.hpp>
#include <dflash/report/console.hpp>
#include <dflash/train/run_answers.hpp>
#include <dflash/train/run_data.hpp>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <fmt/format.h>
#include <unistd.h>

namespace dflash::cli {
namespace {

/// A bar on standard error, where it is a terminal: what is printed stays clean in pipes.
class ProgressBar {
  public:
    explicit ProgressBar(const char* what) : what_(what), shows_(::isatty(STDERR_FILENO) == 1) {}

    void operator()(std::int64_t done, std::int64_t total) {
        if (!shows_ || total == 0) {
            return;
        }
        constexpr std::int64_t kWidth = 40;
        const auto filled = static_cast<std::size_t>(done * kWidth / total);
        const double seconds =
            std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count();
        const double left =
            done == 0 ? 0 : seconds * static_cast<double>(total - done) / static_cast<double>(done);
        fmt::print(stderr,
                   "\r\x1b[K{} [{:<{}}] {} of {} rows, {} left",
                   what_,
                   std::string(filled, '#'),
                   kWidth,
                   format_count(done),
                   format_count(total),
                   format_seconds(left));
        if (done == total) {
            fmt::print(stderr, "\r\x1b[K");
        }
        std::fflush(stderr);
    }

  private:
    const char* what_;
    bool shows_;
    std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

struct Judged {
    const data::Dataset& dataset;
    std::vector<data::SampleView> samples;
    double seconds = 0;
};

double megabytes_per_second(const Judged& judged) {
    return static_cast<double>(judged.dataset.report().bytes) / 1e6 /
           std::max(judged.seconds, 1e-9);
}

void print_json(const Judged& judged) {
    io::Json json = judged.dataset.report().to_json();
    std::vector<io::Json> samples;
    for (const data::SampleView& view : judged.samples) {
        samples.push_back(to_json(view));
    }
    json.set("samples", io::Json::array(std::move(samples)));
    json.set("seconds", io::Json::number(judged.seconds));
    json.set("megabytes_per_second", io::Json::number(megabytes_per_second(judged)));
    fmt::print("{}\n", json.dump_pretty());
}

void print_lines(const Judged& judged, int threads) {
    const report::Console& console = report::console();
    const bool colours = console.is_terminal() && std::getenv("NO_COLOR") == nullptr;
    for (const std::string& line : judged.dataset.report().to_lines(console.width())) {
        fmt::print("{}\n", line);
    }
    for (const data::SampleView& view : judged.samples) {
        fmt::print("\n");
        for (const std::string& line : to_lines(view, colours)) {
            fmt::print("{}\n", line);
        }
    }
    fmt::print("\njudged    {} in {} with {} threads: {:.1f} MB/s\n",
               format_bytes(judged.dataset.report().bytes),
               format_seconds(judged.seconds),
               threads,
               megabytes_per_second(judged));
}

}  // namespace

int data_command(const Arguments& arguments, const std::string& command_line) {
    CLI::App app(
        "Says whether data files are all right for a target: what of them is used, cut and left "
        "out, and why. Loads no model and writes nothing.",
        "dflash data");
    TrainOptions options;
    options.add_to(app);
    bool json = false;
    std::size_t num_samples = 3;
    int threads = 0;
    app.add_flag("--json", json, "prints the report as JSON");
    app.add_option("--samples", num_samples, "first samples that are shown with their loss mask");
    app.add_option("--threads", threads, "threads that judge rows; default one a core");
    if (!parse(app, arguments)) {
        return 0;
    }
    const train::TrainRequest request = resolve(options, command_line);
    const train::RunText text = train::open_text(request.settings);
    data::DatasetOptions judging = train::dataset_options(request.settings);
    judging.refuse_bad_data = false;
    if (threads > 0) {
        judging.num_threads = threads;
    }
    ProgressBar bar("judging rows");
    judging.on_progress = std::ref(bar);

    const auto begin = std::chrono::steady_clock::now();
    const data::Dataset dataset = train::open_data(request.settings.run.data, text, judging);
    Judged judged{.dataset = dataset, .samples = {}, .seconds = 0};
    judged.seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    for (const SampleId id : dataset.usable()) {
        if (judged.samples.size() == num_samples) {
            break;
        }
        judged.samples.push_back(view_sample(dataset, *text.tokenizer, id));
    }
    if (json) {
        print_json(judged);
    } else {
        print_lines(judged, judging.num_threads);
    }
    const std::optional<Error> problem = dataset.problem();
    const data::DataReport& report = dataset.report();
    if (train::RunAnswers::are_wanted(request.settings, report)) {
        const std::int64_t prompts =
            report.num_refused("prompt_only") + report.num_refused("empty_answer");
        if (!json) {
            fmt::print(
                "\nanswers   the target answers {} in a run (data.responses = {}); dflash plan "
                "says how long that takes\n",
                request.settings.data.responses == "regenerate"
                    ? std::string("all rows")
                    : format_count(prompts) + " of these rows",
                quote(request.settings.data.responses));
        }
        if (prompts > 0 && static_cast<double>(report.num_bad() - prompts) <=
                               report.max_bad_fraction * static_cast<double>(report.lines)) {
            return 0;
        }
    }
    if (problem && !json) {
        fmt::print("\nA run would refuse this data: {}\n", escape_controls(problem->parts().what));
    }
    return problem ? 3 : 0;
}

}  // namespace dflash::cli
