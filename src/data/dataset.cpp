// SPDX-License-Identifier: Apache-2.0
// Lines are judged by rendering and tokenising each once; only its length is kept. A sample is
// made anew from its line whenever it is needed, which costs far less than a step does.
#include "data_files.hpp"
#include "judge.hpp"
#include "line_encoder.hpp"

#include <dflash/core/check.hpp>
#include <dflash/core/error.hpp>
#include <dflash/core/text.hpp>
#include <dflash/data/dataset.hpp>

#include <algorithm>
#include <fmt/ranges.h>

namespace dflash::data {

struct Dataset::Impl {
    DataFiles files;
    LineEncoder encoder;
    DataReport report;
    std::vector<SampleId> usable;
    std::vector<std::int32_t> lengths;
    DataState state;
    std::shared_ptr<const RowAnswers> answers;
};

namespace {

std::string counts_by_kind(const DataReport& report) {
    std::vector<std::string> parts;
    for (const auto& [kind, group] : report.refused) {
        parts.push_back(fmt::format("{} {}", kind, format_count(group.rows)));
    }
    return fmt::format("{}", fmt::join(parts, ", "));
}

std::string counts_by_reason(const DataReport& report) {
    std::vector<std::string> parts;
    for (const auto& [reason, count] : report.dropped_answers) {
        parts.push_back(fmt::format("{} {}", reason, format_count(count)));
    }
    return fmt::format("{}", fmt::join(parts, ", "));
}

// An error that lists the first example of each kind, a line each.
Error bad_rows(const DataReport& report, std::string what, std::string hint) {
    std::string examples = report.refused.empty() ? "" : "first of each kind:";
    for (const auto& [kind, group] : report.refused) {
        examples += fmt::format("\n  {}: {}", kind, group.message);
    }
    return Error(ErrorKind::Data,
                 {.what = std::move(what),
                  .where = {},
                  .cause = std::move(examples),
                  .hint = std::move(hint)});
}

// What to do where no answer of the target can be used.
std::string hint_for_answers(const DataReport& report) {
    const auto most = std::ranges::max_element(
        report.dropped_answers, {}, [](const auto& reason) { return reason.second; });
    if (most->first == "too_few_trained") {
        return "Make data.min_trained_tokens smaller, or data.max_length and "
               "generate.max_new_tokens larger";
    }
    if (most->first == "cut_before_answer") {
        return "Make data.max_length larger";
    }
    return "answers.jsonl in the run's folder has what the target wrote; the settings generate.* "
           "say how it answers";
}

// In the order of what helps most: nothing at all, too much of it bad, nothing to learn.
std::optional<Error> problem_of(const DataReport& report) {
    const std::int64_t num_refused = report.num_refused();
    std::int64_t num_dropped = 0;
    for (const auto& [reason, count] : report.dropped_answers) {
        num_dropped += count;
    }
    if (report.usable == 0 && report.pending == 0 && num_dropped > 0) {
        return bad_rows(report,
                        fmt::format("no usable row: none of the {} answers of the target can be "
                                    "used ({}), and {} of {} rows are refused",
                                    format_count(num_dropped),
                                    counts_by_reason(report),
                                    format_count(num_refused),
                                    format_count(report.lines)),
                        hint_for_answers(report));
    }
    if (report.usable == 0 && report.pending == 0) {
        // The rows are well-formed then, but say that nothing of them is to be trained.
        const bool only_masked =
            report.num_refused("nothing_trained") + report.num_refused("cut_before_answer") ==
            num_refused;
        return bad_rows(
            report,
            fmt::format("{}: {} of {} rows refused ({})",
                        only_masked ? "no row has a supervised token" : "no usable row",
                        format_count(num_refused),
                        format_count(report.lines),
                        counts_by_kind(report)),
            only_masked
                ? "Raise data.max_length if the rows are long, and give answers a weight of 1"
                : "A row is one JSON object a line, with messages or with prompt and response");
    }
    const std::int64_t num_bad = report.num_bad();
    const double fraction = static_cast<double>(num_bad) / static_cast<double>(report.lines);
    if (fraction > report.max_bad_fraction) {
        return bad_rows(report,
                        fmt::format("{} of {} rows refused ({:.2f} %), expected at most {:.2f} % "
                                    "(data.max_bad_fraction = {}): {}",
                                    format_count(num_bad),
                                    format_count(report.lines),
                                    100 * fraction,
                                    100 * report.max_bad_fraction,
                                    report.max_bad_fraction,
                                    counts_by_kind(report)),
                        "Repair the rows, or raise data.max_bad_fraction to train without them");
    }
    if (report.anchors == 0 && report.pending == 0) {
        std::vector<std::string> paths;
        for (const FileCount& file : report.files) {
            paths.push_back(file.path);
        }
        return Error(
            ErrorKind::Data,
            {.what = fmt::format("no supervised token: in none of {} usable rows two trained "
                                 "tokens stand side by side, so that a block could begin",
                                 format_count(report.usable)),
             .where = fmt::format("{}", fmt::join(paths, ", ")),
             .cause = {},
             .hint = "The answers must be longer than one token"});
    }
    return std::nullopt;
}

// Marks that are no tokens would be spelled out letter by letter, and training would look fine.
void check_tokenizer(const Tokenizer& tokenizer, const ChatFormat& format) {
    for (const std::string& token : format.turn_tokens()) {
        const Encoding encoding = tokenizer.encode(token);
        if (encoding.ids.size() != 1) {
            throw Error(ErrorKind::Config,
                        {.what = fmt::format("the chat format {} writes {}, which the target's "
                                             "tokenizer has no token for",
                                             format.name(),
                                             token),
                         .where = {},
                         .cause = {},
                         .hint = "Set data.chat_format to the format the target was trained on"});
        }
    }
}

}  // namespace

Dataset::Dataset(std::unique_ptr<const Impl> impl) : impl_(std::move(impl)) {}

Dataset::Dataset(Dataset&&) noexcept = default;
Dataset::~Dataset() = default;

Dataset Dataset::open(const std::vector<DataFile>& files,
                      std::shared_ptr<const Tokenizer> tokenizer,
                      std::shared_ptr<const ChatFormat> format,
                      DatasetOptions options) {
    DFLASH_CHECK(!files.empty(), "no data file");
    DFLASH_CHECK(options.max_length >= 1, "max_length {}", options.max_length);
    check_tokenizer(*tokenizer, *format);
    const std::string format_name(format->name());
    std::vector<std::string> paths;
    for (const DataFile& file : files) {
        paths.push_back(file.path);
    }
    auto impl = std::make_unique<Impl>(
        Impl{.files = DataFiles(paths, options.files),
             .encoder = LineEncoder(std::move(tokenizer), std::move(format), options),
             .report = {},
             .usable = {},
             .lengths = {},
             .state = {},
             .answers = options.answers});
    Judgement judgement = judge_rows(impl->files, impl->encoder, options);
    impl->report = std::move(judgement.report);
    impl->report.chat_format = format_name;
    for (std::size_t i = 0; i < files.size(); ++i) {
        impl->report.files[i].weight = files[i].weight;
    }
    impl->usable = std::move(judgement.usable);
    impl->lengths = std::move(judgement.lengths);
    if (const std::optional<Error> problem = problem_of(impl->report);
        problem && options.refuse_bad_data) {
        throw *problem;
    }
    impl->state.files = impl->files.contents();
    impl->state.num_rows = impl->files.num_rows();
    const SampleId last = impl->files.num_rows() - 1;
    const bool last_is_usable = !impl->usable.empty() && impl->usable.back() == last;
    if (!last_is_usable && impl->files.ends_file(last)) {
        --impl->state.num_rows;
    }
    return Dataset(std::move(impl));
}

Mixture Dataset::mixture() const {
    std::vector<std::int64_t> first_rows = impl_->files.first_rows();
    first_rows.pop_back();
    std::vector<double> weights;
    for (const FileCount& file : impl_->report.files) {
        weights.push_back(file.weight);
    }
    return {std::move(first_rows), std::move(weights)};
}

const std::vector<SampleId>& Dataset::usable() const {
    return impl_->usable;
}

const DataReport& Dataset::report() const {
    return impl_->report;
}

std::optional<Error> Dataset::problem() const {
    return problem_of(impl_->report);
}

Sample Dataset::encode(SampleId id) const {
    DFLASH_CHECK(std::binary_search(impl_->usable.begin(), impl_->usable.end(), id),
                 "sample {} is not usable",
                 id);
    Sample sample;
    sample.ref.id = id;
    RowAnswers::Found answer;
    if (impl_->answers) {
        answer = impl_->answers->find(id);
    }
    const bool own = answer.state == RowAnswers::State::Own;
    if (!own && answer.state != RowAnswers::State::Answered) {
        sample.dropped =
            answer.state == RowAnswers::State::Dropped ? std::move(answer.text) : kPendingAnswer;
        return sample;
    }
    EncodedLine line =
        own ? impl_->encoder.encode(impl_->files.text(id), impl_->files.ends_file(id))
            : impl_->encoder.encode(answer.text, /*ends_file=*/false);
    if (line.fault && !own) {
        sample.dropped = std::move(line.fault->kind);
        return sample;
    }
    if (line.fault) {
        throw Error(ErrorKind::Data,
                    {.what = "a row that was usable when the run began is now refused",
                     .where = place_of(id),
                     .cause = std::move(line.fault->message),
                     .hint = "Do not change data files during a run"});
    }
    sample.tokens = std::move(line.tokens);
    sample.trainable = std::move(line.trainable);
    return sample;
}

const std::vector<std::int32_t>& Dataset::lengths() const {
    return impl_->lengths;
}

const DataState& Dataset::state() const {
    return impl_->state;
}

DataComparison Dataset::compare_with(const DataState& before) const {
    if (impl_->state.files == before.files) {
        return {};
    }
    DataComparison comparison = impl_->files.compare_with(before);
    if (comparison.change != DataChange::Other) {
        comparison.new_rows = impl_->state.num_rows - before.num_rows;
    }
    return comparison;
}

std::string Dataset::place_of(SampleId id) const {
    return impl_->files.place(id);
}

}  // namespace dflash::data
