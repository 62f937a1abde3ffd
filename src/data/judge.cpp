// SPDX-License-Identifier: Apache-2.0
#include "judge.hpp"

#include "coverage.hpp"

#include <dflash/core/activity.hpp>
#include <dflash/core/check.hpp>
#include <dflash/core/first_error.hpp>
#include <dflash/core/random.hpp>
#include <dflash/data/anchors.hpp>

#include <algorithm>
#include <atomic>
#include <bit>
#include <chrono>
#include <functional>
#include <mutex>
#include <thread>

namespace dflash::data {

namespace {

constexpr std::int64_t kChunk = 32;  // rows taken at once: small, since rows differ in length
// Data whose fields are named by ids would fill the report with them.
constexpr std::size_t kMostIgnored = 100;

// The first rows of a group, whoever found them.
struct Examples {
    std::int64_t rows = 0;
    std::vector<SampleId> ids;  // rising, at most RowGroup::kMostPlaces
    RowFault fault;             // of the first one, if they are refused

    void add(SampleId id, RowFault&& row_fault = {}) {
        ++rows;
        if (ids.empty() || id < ids.front()) {
            fault = std::move(row_fault);
        }
        insert(id);
    }

    void merge(Examples&& other) {
        rows += other.rows;
        if (!other.ids.empty() && (ids.empty() || other.ids.front() < ids.front())) {
            fault = std::move(other.fault);
        }
        for (const SampleId id : other.ids) {
            insert(id);
        }
    }

  private:
    void insert(SampleId id) {
        if (ids.size() == RowGroup::kMostPlaces && id > ids.back()) {
            return;
        }
        ids.insert(std::upper_bound(ids.begin(), ids.end(), id), id);
        if (ids.size() > RowGroup::kMostPlaces) {
            ids.pop_back();
        }
    }
};

// What one thread found; merging is independent of who found what.
struct Findings {
    DataReport sums;                 // figures over usable samples, shapes and ignored fields
    std::int64_t covered_milli = 0;  // whole numbers: their sum does not depend on the order
    std::map<std::string, Examples> refused;
    Examples cut;
    Examples without_anchor;

    void accept(SampleId id, const EncodedLine& line, const DatasetOptions& options);
    void merge(Findings&& other);
};

std::size_t length_class(std::int64_t length) {
    std::size_t place = 0;
    for (std::int64_t most = DataReport::kShortest;
         length > most && place + 1 < DataReport::kNumLengths;
         most *= 2) {
        ++place;
    }
    return place;
}

void Findings::accept(SampleId id, const EncodedLine& line, const DatasetOptions& options) {
    const auto length = static_cast<std::int64_t>(line.tokens.size());
    const std::vector<std::int32_t> candidates = anchor_candidates(line.trainable);
    const auto num_candidates = static_cast<std::int64_t>(candidates.size());
    const std::int64_t num_anchors = std::min(num_candidates, options.max_anchors);
    ++sums.usable;
    sums.tokens += length;
    sums.trainable_tokens += std::count(line.trainable.begin(), line.trainable.end(), 1);
    sums.longest = std::max(sums.longest, length + line.cut_tokens);
    ++sums.lengths[length_class(length + line.cut_tokens)];
    sums.cut_tokens += line.cut_tokens;
    sums.cut_trainable += line.cut_trainable;
    sums.vanished_bytes += line.vanished_bytes;
    sums.left_out.reasoning += line.left_out.reasoning;
    sums.left_out.text += line.left_out.text;
    sums.left_out.tools += line.left_out.tools;
    sums.anchors += num_anchors;
    sums.anchor_candidates += num_candidates;
    sums.capped += num_candidates > options.max_anchors ? 1 : 0;
    covered_milli += static_cast<std::int64_t>(
        1000 * expected_coverage(line.trainable, candidates, num_anchors, options.block_size));
    if (line.cut_tokens > 0) {
        cut.add(id);
    }
    if (num_candidates == 0) {
        without_anchor.add(id);
    }
}

void Findings::merge(Findings&& other) {
    const DataReport& theirs = other.sums;
    sums.usable += theirs.usable;
    sums.answered += theirs.answered;
    sums.pending += theirs.pending;
    for (const auto& [reason, count] : theirs.dropped_answers) {
        sums.dropped_answers[reason] += count;
    }
    sums.tokens += theirs.tokens;
    sums.trainable_tokens += theirs.trainable_tokens;
    sums.longest = std::max(sums.longest, theirs.longest);
    for (std::size_t i = 0; i < sums.lengths.size(); ++i) {
        sums.lengths[i] += theirs.lengths[i];
    }
    sums.cut_tokens += theirs.cut_tokens;
    sums.cut_trainable += theirs.cut_trainable;
    sums.dropped_trainable += theirs.dropped_trainable;
    sums.vanished_bytes += theirs.vanished_bytes;
    sums.left_out.reasoning += theirs.left_out.reasoning;
    sums.left_out.text += theirs.left_out.text;
    sums.left_out.tools += theirs.left_out.tools;
    sums.anchors += theirs.anchors;
    sums.anchor_candidates += theirs.anchor_candidates;
    sums.capped += theirs.capped;
    for (const auto& [name, count] : theirs.shapes) {
        sums.shapes[name].rows += count.rows;
        sums.shapes[name].usable += count.usable;
    }
    for (const auto& [name, rows] : theirs.ignored) {
        sums.ignored[name] += rows;
    }
    covered_milli += other.covered_milli;
    for (auto& [kind, examples] : other.refused) {
        refused[kind].merge(std::move(examples));
    }
    cut.merge(std::move(other.cut));
    without_anchor.merge(std::move(other.without_anchor));
}

// What is kept of every row until all are judged.
struct RowFigures {
    static constexpr std::int32_t kRefused = -1;
    static constexpr std::int32_t kNoAnswer = 0;  // a sample all the same

    explicit RowFigures(std::int64_t rows)
        : lengths(static_cast<std::size_t>(rows), kRefused),
          whole_lengths(lengths.size()),
          hashes(lengths.size()) {}

    bool has_tokens(std::size_t row) const { return lengths[row] > 0; }

    std::vector<std::int32_t> lengths;        // after cutting, or kRefused, kNoAnswer
    std::vector<std::int32_t> whole_lengths;  // before
    std::vector<std::uint64_t> hashes;        // of tokens and mask, for duplicates
};

std::uint64_t hash_of(const EncodedLine& line) {
    const std::uint64_t tokens = stable_hash(reinterpret_cast<const char*>(line.tokens.data()),
                                             line.tokens.size() * sizeof(TokenId));
    const std::uint64_t mask =
        stable_hash(reinterpret_cast<const char*>(line.trainable.data()), line.trainable.size());
    return tokens ^ std::rotl(mask, 32);
}

// Progress for people, and pages of the files given back, both by the thread that judges chunk 0.
class Advance {
  public:
    Advance(const DataFiles& files, const DatasetOptions& options)
        : files_(files), options_(options) {}

    void at(SampleId done) {
        const auto now = std::chrono::steady_clock::now();
        if (now < next_) {
            return;
        }
        next_ = now + std::chrono::milliseconds(100);
        // Other threads may be some chunks behind.
        const SampleId behind = done - 64 * kChunk;
        if (behind > forgotten_) {
            files_.forget(forgotten_, behind);
            forgotten_ = behind;
        }
        if (options_.on_progress) {
            options_.on_progress(done, files_.num_rows());
        }
    }

  private:
    const DataFiles& files_;
    const DatasetOptions& options_;
    std::chrono::steady_clock::time_point next_ = std::chrono::steady_clock::now();
    SampleId forgotten_ = 0;
};

class Judge {
  public:
    Judge(const DataFiles& files, const LineEncoder& encoder, const DatasetOptions& options)
        : files_(files), encoder_(encoder), options_(options), figures_(files.num_rows()) {}

    Findings run();

    const RowFigures& figures() const { return figures_; }

  private:
    void judge_row(SampleId id, Findings& found);
    std::optional<EncodedLine> answered_row(SampleId id, Findings& found);
    void work(Findings& found, Advance* advance) noexcept;

    const DataFiles& files_;
    const LineEncoder& encoder_;
    const DatasetOptions& options_;
    RowFigures figures_;
    std::atomic<std::int64_t> next_ = 0;
    FirstError first_error_;
};

// A row that a model answers; nothing if there is nothing more to be judged of it.
std::optional<EncodedLine> Judge::answered_row(SampleId id, Findings& found) {
    using State = RowAnswers::State;
    RowAnswers::Found answer = options_.answers->find(id);
    EncodedLine line;
    switch (answer.state) {
        case State::Own:
            return encoder_.encode(files_.text(id), files_.ends_file(id));
        case State::Refused:
            line.fault.emplace();
            line.fault->kind = kPromptTooLong;
            line.fault->message = std::move(answer.text);
            return line;
        case State::Pending:
            ++found.sums.pending;
            break;
        case State::Dropped:
            ++found.sums.dropped_answers[answer.text];
            break;
        case State::Answered:
            line = encoder_.encode(answer.text, /*ends_file=*/false);
            if (!line.fault) {
                ++found.sums.answered;
                return line;
            }
            ++found.sums.dropped_answers[line.fault->kind];
            break;
    }
    figures_.lengths[static_cast<std::size_t>(id)] = RowFigures::kNoAnswer;
    return std::nullopt;
}

void Judge::judge_row(SampleId id, Findings& found) {
    std::optional<EncodedLine> judged =
        options_.answers ? answered_row(id, found)
                         : encoder_.encode(files_.text(id), files_.ends_file(id));
    if (!judged) {
        return;
    }
    EncodedLine& line = *judged;
    if (!line.shape.empty()) {
        ++found.sums.shapes[line.shape].rows;
    }
    for (const std::string& name : line.ignored) {
        const auto known = found.sums.ignored.find(name);
        if (known != found.sums.ignored.end()) {
            ++known->second;
        } else if (found.sums.ignored.size() < kMostIgnored) {
            found.sums.ignored.emplace(name, 1);
        }
    }
    if (line.fault) {
        found.sums.dropped_trainable += line.cut_trainable;
        found.refused[line.fault->kind].add(id, std::move(*line.fault));
        return;
    }
    ++found.sums.shapes[line.shape].usable;
    const auto place = static_cast<std::size_t>(id);
    figures_.lengths[place] = narrow<std::int32_t>(line.tokens.size());
    figures_.whole_lengths[place] = figures_.lengths[place] + narrow<std::int32_t>(line.cut_tokens);
    figures_.hashes[place] = hash_of(line);
    found.accept(id, line, options_);
}

// No sample waits for another, so the order in which threads take chunks does not matter.
void Judge::work(Findings& found, Advance* advance) noexcept {
    try {
        while (!first_error_.failed()) {
            const std::int64_t begin = next_.fetch_add(kChunk);
            const std::int64_t end = std::min(begin + kChunk, files_.num_rows());
            if (begin >= end) {
                return;
            }
            for (SampleId id = begin; id < end; ++id) {
                judge_row(id, found);
            }
            note_progress();
            if (advance != nullptr) {
                advance->at(end);
            }
        }
    } catch (...) {
        first_error_.store(std::current_exception());
    }
}

Findings Judge::run() {
    const auto num_threads = static_cast<std::size_t>(std::max(1, options_.num_threads));
    std::vector<Findings> findings(num_threads);
    Advance advance(files_, options_);
    {
        std::vector<std::jthread> threads;  // joined at the end of the scope
        for (std::size_t i = 1; i < num_threads; ++i) {
            threads.emplace_back([this, &found = findings[i]] { work(found, nullptr); });
        }
        work(findings[0], &advance);
    }
    first_error_.rethrow_if_failed();
    for (std::size_t i = 1; i < num_threads; ++i) {
        findings[0].merge(std::move(findings[i]));
    }
    if (options_.on_progress) {
        options_.on_progress(files_.num_rows(), files_.num_rows());
    }
    return std::move(findings[0]);
}

RowGroup group_of(const Examples& examples, const DataFiles& files) {
    RowGroup group;
    group.rows = examples.rows;
    for (const SampleId id : examples.ids) {
        group.places.push_back(files.place(id));
    }
    if (!examples.ids.empty() && !examples.fault.kind.empty()) {
        group.message = fmt::format(
            "{}: {}", files.place(examples.ids.front(), examples.fault), examples.fault.message);
    }
    return group;
}

// Usable rows whose tokens and mask an earlier row has as well.
RowGroup find_duplicates(const RowFigures& figures, const DataFiles& files) {
    std::vector<SampleId> order;
    for (std::size_t i = 0; i < figures.lengths.size(); ++i) {
        if (figures.has_tokens(i)) {
            order.push_back(static_cast<SampleId>(i));
        }
    }
    const auto hash = [&](SampleId id) { return figures.hashes[static_cast<std::size_t>(id)]; };
    std::sort(order.begin(), order.end(), [&](SampleId a, SampleId b) {
        return hash(a) != hash(b) ? hash(a) < hash(b) : a < b;
    });
    Examples again;
    std::map<SampleId, SampleId> original;  // of the examples
    SampleId first = -1;
    for (std::size_t i = 0; i < order.size(); ++i) {
        if (i == 0 || hash(order[i]) != hash(order[i - 1])) {
            first = order[i];
            continue;
        }
        again.add(order[i]);
        if (!again.ids.empty() &&
            std::find(again.ids.begin(), again.ids.end(), order[i]) != again.ids.end()) {
            original[order[i]] = first;
        }
    }
    RowGroup group;
    group.rows = again.rows;
    for (const SampleId id : again.ids) {
        group.places.push_back(
            fmt::format("{} = {}", files.place(id), files.place(original.at(id))));
    }
    return group;
}

std::int64_t quantile(std::vector<std::int32_t>& sorted, double share) {
    if (sorted.empty()) {
        return 0;
    }
    const auto place = static_cast<std::size_t>(share * static_cast<double>(sorted.size() - 1));
    return sorted[place];
}

void fill_lengths(const RowFigures& figures, DataReport& report) {
    std::vector<std::int32_t> sorted;
    for (std::size_t i = 0; i < figures.lengths.size(); ++i) {
        if (figures.has_tokens(i)) {
            sorted.push_back(figures.whole_lengths[i]);
        }
    }
    std::sort(sorted.begin(), sorted.end());
    report.length_p50 = quantile(sorted, 0.5);
    report.length_p90 = quantile(sorted, 0.9);
    report.length_p99 = quantile(sorted, 0.99);
}

void count_files(const DataFiles& files, const std::vector<SampleId>& usable, DataReport& report) {
    const std::vector<std::int64_t>& first = files.first_rows();
    for (std::size_t i = 0; i + 1 < first.size(); ++i) {
        const auto begin = std::lower_bound(usable.begin(), usable.end(), first[i]);
        const auto end = std::lower_bound(begin, usable.end(), first[i + 1]);
        report.files.push_back({.path = files.path(i),
                                .weight = 1,
                                .rows = first[i + 1] - first[i],
                                .usable = end - begin});
        report.bytes += files.bytes(i);
    }
}

}  // namespace

Judgement judge_rows(const DataFiles& files,
                     const LineEncoder& encoder,
                     const DatasetOptions& options) {
    Judge judge(files, encoder, options);
    Findings findings = judge.run();
    const RowFigures& figures = judge.figures();
    Judgement result{.report = std::move(findings.sums), .usable = {}, .lengths = {}};
    for (std::size_t i = 0; i < figures.lengths.size(); ++i) {
        if (figures.lengths[i] != RowFigures::kRefused) {
            result.usable.push_back(static_cast<SampleId>(i));
            result.lengths.push_back(figures.lengths[i]);
        }
    }
    DataReport& report = result.report;
    report.max_length = options.max_length;
    report.max_anchors = options.max_anchors;
    report.block_size = options.block_size;
    report.max_bad_fraction = options.max_bad_fraction;
    report.target_answers = options.target_answers;
    report.lines = files.num_rows();
    report.blank = files.num_blank();
    report.covered = static_cast<double>(findings.covered_milli) / 1000;
    for (const auto& [kind, examples] : findings.refused) {
        report.refused[kind] = group_of(examples, files);
    }
    report.cut = group_of(findings.cut, files);
    report.without_anchor = group_of(findings.without_anchor, files);
    report.duplicates = find_duplicates(figures, files);
    fill_lengths(figures, report);
    count_files(files, result.usable, report);
    return result;
}

}  // namespace dflash::data
