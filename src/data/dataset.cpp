// SPDX-License-Identifier: Apache-2.0
#include "data_files.hpp"
#include "line_encoder.hpp"

#include <dflash/core/activity.hpp>
#include <dflash/core/check.hpp>
#include <dflash/core/error.hpp>
#include <dflash/core/first_error.hpp>
#include <dflash/core/text.hpp>
#include <dflash/data/anchors.hpp>
// Lines are judged by rendering and tokenising each once; only its length is kept. A sample is
// made anew from its line whenever it is needed, which costs far less than a step does.
#include <dflash/data/dataset.hpp>

#include <algorithm>
#include <atomic>
#include <fmt/ranges.h>
#include <thread>

namespace dflash::data {

struct Dataset::Impl {
    DataFiles files;
    LineEncoder encoder;
    DataReport report;
    std::vector<SampleId> usable;
    std::vector<std::int32_t> lengths;
    DataState state;
};

namespace {

constexpr std::int32_t kRefused = -1;

// Refused rows of one kind.
struct Refusals {
    std::int64_t count = 0;
    SampleId first = 0;
    RowFault fault;  // of the first
};

// What one thread found; merging is independent of who found what.
struct Findings {
    DataReport report;  // sums over usable samples only
    std::map<std::string, Refusals> refused;

    void refuse(SampleId id, RowFault fault) {
        Refusals& kind = refused[fault.kind];
        if (kind.count == 0 || id < kind.first) {
            kind.first = id;
            kind.fault = std::move(fault);
        }
        ++kind.count;
    }

    void accept(const EncodedLine& line, std::int64_t max_anchors) {
        const auto length = static_cast<std::int64_t>(line.tokens.size());
        const auto candidates = static_cast<std::int64_t>(anchor_candidates(line.trainable).size());
        ++report.usable;
        report.tokens += length;
        report.trainable_tokens += std::count(line.trainable.begin(), line.trainable.end(), 1);
        report.longest = std::max(report.longest, length + line.cut_tokens);
        report.cut += line.cut_tokens > 0 ? 1 : 0;
        report.cut_tokens += line.cut_tokens;
        report.vanished_bytes += line.vanished_bytes;
        report.left_out.reasoning += line.left_out.reasoning;
        report.left_out.text += line.left_out.text;
        report.left_out.tools += line.left_out.tools;
        report.anchors += std::min(candidates, max_anchors);
        report.without_anchor += candidates == 0 ? 1 : 0;
    }

    void merge(Findings&& other) {
        report.usable += other.report.usable;
        report.tokens += other.report.tokens;
        report.trainable_tokens += other.report.trainable_tokens;
        report.longest = std::max(report.longest, other.report.longest);
        report.cut += other.report.cut;
        report.cut_tokens += other.report.cut_tokens;
        report.vanished_bytes += other.report.vanished_bytes;
        report.left_out.reasoning += other.report.left_out.reasoning;
        report.left_out.text += other.report.left_out.text;
        report.left_out.tools += other.report.left_out.tools;
        report.anchors += other.report.anchors;
        report.without_anchor += other.report.without_anchor;
        for (auto& [kind, theirs] : other.refused) {
            Refusals& ours = refused[kind];
            const std::int64_t count = ours.count + theirs.count;
            if (ours.count == 0 || theirs.first < ours.first) {
                ours = std::move(theirs);
            }
            ours.count = count;
        }
    }
};

// Judges all rows in `num_threads` threads. lengths [rows] gets tokens, or kRefused.
Findings judge(const DataFiles& files,
               const LineEncoder& encoder,
               const DatasetOptions& options,
               std::vector<std::int32_t>& lengths) {
    constexpr std::int64_t kChunk = 32;  // rows taken at once: small, since rows differ in length
    std::atomic<std::int64_t> next = 0;
    FirstError first_error;
    const auto num_threads = static_cast<std::size_t>(std::max(1, options.num_threads));
    std::vector<Findings> findings(num_threads);

    const auto judge_row = [&](SampleId id, Findings& found) {
        EncodedLine line = encoder.encode(files.text(id), files.ends_file(id));
        if (!line.fault) {
            lengths[static_cast<std::size_t>(id)] = narrow<std::int32_t>(line.tokens.size());
            found.accept(line, options.max_anchors);
            return;
        }
        found.refuse(id, std::move(*line.fault));
    };
    // No sample waits for another, so the order in which threads take chunks does not matter.
    const auto work = [&](Findings& found) noexcept {
        try {
            while (!first_error.failed()) {
                const std::int64_t begin = next.fetch_add(kChunk);
                const std::int64_t end = std::min(begin + kChunk, files.num_rows());
                if (begin >= end) {
                    return;
                }
                for (SampleId id = begin; id < end; ++id) {
                    judge_row(id, found);
                }
                note_progress();
            }
        } catch (...) {
            first_error.store(std::current_exception());
        }
    };
    {
        std::vector<std::jthread> threads;  // joined at the end of the scope
        for (std::size_t i = 1; i < num_threads; ++i) {
            threads.emplace_back(work, std::ref(findings[i]));
        }
        work(findings[0]);
    }
    first_error.rethrow_if_failed();
    for (std::size_t i = 1; i < num_threads; ++i) {
        findings[0].merge(std::move(findings[i]));
    }
    return std::move(findings[0]);
}

std::string counts_by_kind(const DataReport& report) {
    std::vector<std::string> parts;
    for (const auto& [kind, count] : report.refused) {
        parts.push_back(fmt::format("{} {}", kind, format_count(count)));
    }
    return fmt::format("{}", fmt::join(parts, ", "));
}

// An error that lists the first example of each kind, a line each.
Error bad_rows(const DataReport& report, std::string what, std::string hint) {
    std::string examples = "first of each kind:";
    for (const auto& [kind, example] : report.first_example) {
        examples += fmt::format("\n  {}: {}", kind, example);
    }
    return Error(ErrorKind::Data,
                 {.what = std::move(what),
                  .where = {},
                  .cause = std::move(examples),
                  .hint = std::move(hint)});
}

// In the order of what helps most: nothing at all, too much of it bad, nothing to learn.
void check_report(const DataReport& report, const DatasetOptions& options) {
    const std::int64_t num_refused = report.num_refused();
    if (report.usable == 0) {
        const auto count = [&](const char* kind) {
            const auto found = report.refused.find(kind);
            return found == report.refused.end() ? 0 : found->second;
        };
        // The rows are well-formed then, but say that nothing of them is to be trained.
        const bool only_masked =
            count("nothing_trained") + count("cut_before_answer") == num_refused;
        throw bad_rows(
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
    const double fraction = static_cast<double>(num_refused) / static_cast<double>(report.lines);
    if (fraction > options.max_bad_fraction) {
        throw bad_rows(report,
                       fmt::format("{} of {} rows refused ({:.2f} %), expected at most {:.2f} % "
                                   "(data.max_bad_fraction = {}): {}",
                                   format_count(num_refused),
                                   format_count(report.lines),
                                   100 * fraction,
                                   100 * options.max_bad_fraction,
                                   options.max_bad_fraction,
                                   counts_by_kind(report)),
                       "Repair the rows, or raise data.max_bad_fraction to train without them");
    }
    if (report.anchors == 0) {
        throw Error(
            ErrorKind::Data,
            {.what = fmt::format("no supervised token: in none of {} usable rows two trained "
                                 "tokens stand side by side, so that a block could begin",
                                 format_count(report.usable)),
             .where = fmt::format("{}", fmt::join(report.files, ", ")),
             .cause = {},
             .hint = "The answers must be longer than one token"});
    }
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

Dataset Dataset::open(const std::vector<std::string>& files,
                      std::shared_ptr<const Tokenizer> tokenizer,
                      std::shared_ptr<const ChatFormat> format,
                      DatasetOptions options) {
    DFLASH_CHECK(!files.empty(), "no data file");
    DFLASH_CHECK(options.max_length >= 1, "max_length {}", options.max_length);
    check_tokenizer(*tokenizer, *format);
    const std::string format_name(format->name());
    auto impl = std::make_unique<Impl>(
        Impl{.files = DataFiles(files, options.files),
             .encoder = LineEncoder(std::move(tokenizer), std::move(format), options),
             .report = {},
             .usable = {},
             .lengths = {},
             .state = {}});
    std::vector<std::int32_t> lengths(static_cast<std::size_t>(impl->files.num_rows()), kRefused);
    Findings findings = judge(impl->files, impl->encoder, options, lengths);

    DataReport& report = impl->report;
    report = std::move(findings.report);
    report.files = files;
    report.chat_format = format_name;
    report.max_length = options.max_length;
    report.lines = impl->files.num_rows();
    report.blank = impl->files.num_blank();
    for (const auto& [kind, refusals] : findings.refused) {
        report.refused[kind] = refusals.count;
        report.first_example[kind] = fmt::format(
            "{}: {}", impl->files.place(refusals.first, refusals.fault), refusals.fault.message);
    }
    check_report(report, options);

    for (std::size_t i = 0; i < lengths.size(); ++i) {
        if (lengths[i] != kRefused) {
            impl->usable.push_back(static_cast<SampleId>(i));
            impl->lengths.push_back(lengths[i]);
        }
    }
    impl->state.files = impl->files.contents();
    impl->state.num_rows = impl->files.num_rows();
    if (lengths.back() == kRefused && impl->files.ends_file(impl->files.num_rows() - 1)) {
        --impl->state.num_rows;
    }
    return Dataset(std::move(impl));
}

const std::vector<SampleId>& Dataset::usable() const {
    return impl_->usable;
}

const DataReport& Dataset::report() const {
    return impl_->report;
}

Sample Dataset::encode(SampleId id) const {
    DFLASH_CHECK(std::binary_search(impl_->usable.begin(), impl_->usable.end(), id),
                 "sample {} is not usable",
                 id);
    EncodedLine line = impl_->encoder.encode(impl_->files.text(id), impl_->files.ends_file(id));
    if (line.fault) {
        throw Error(ErrorKind::Data,
                    {.what = "a row that was usable when the run began is now refused",
                     .where = place_of(id),
                     .cause = std::move(line.fault->message),
                     .hint = "Do not change data files during a run"});
    }
    Sample sample;
    sample.ref.id = id;
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
