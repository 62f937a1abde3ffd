// SPDX-License-Identifier: Apache-2.0
#include <dflash/core/check.hpp>
#include <dflash/core/error.hpp>
#include <dflash/core/random.hpp>
#include <dflash/data/packer.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <doctest/doctest.h>
#include <functional>
#include <numeric>
#include <set>
#include <string>
#include <tuple>
#include <vector>

namespace dflash::data {
namespace {

/// A data set made of numbers: sample `id` has a length, a mask and tokens that follow from its id.
struct FakeData {
    std::vector<std::int64_t> lengths;
    std::set<SampleId> without_anchor{};
    std::set<SampleId> refused{};
    std::uint64_t seed = 7;

    std::vector<SampleId> ids() const {
        std::vector<SampleId> ids(lengths.size());
        std::iota(ids.begin(), ids.end(), 0);
        return ids;
    }

    Sample sample(const SampleRef& ref) const {
        Sample sample{.ref = ref};
        if (refused.contains(ref.id)) {
            sample.dropped = "refused";
            return sample;
        }
        const auto length = static_cast<std::size_t>(lengths[static_cast<std::size_t>(ref.id)]);
        for (std::size_t i = 0; i < length; ++i) {
            sample.tokens.push_back(
                static_cast<TokenId>(ref.id * 1000 + std::ssize(sample.tokens)));
            const bool trained = i >= length / 3 && !without_anchor.contains(ref.id);
            sample.trainable.push_back(trained ? 1 : 0);
        }
        return sample;
    }

    /// The samples from a cursor on, over `epochs` epochs, END last.
    std::vector<Sample> from(const Cursor& start, std::int64_t epochs, std::int64_t window) const {
        std::vector<Sample> samples;
        for (std::int64_t epoch = start.epoch; epoch < epochs; ++epoch) {
            const std::vector<SampleId> order = epoch_order(ids(), seed, epoch);
            const std::int64_t first = epoch == start.epoch ? start.window * window : 0;
            for (std::int64_t place = first; place < std::ssize(order); ++place) {
                samples.push_back(sample({.index = std::ssize(samples),
                                          .epoch = epoch,
                                          .place = place,
                                          .id = order[static_cast<std::size_t>(place)],
                                          .last_of_epoch = place + 1 == std::ssize(order)}));
            }
        }
        samples.push_back({.ref = {.index = std::ssize(samples), .end = true}});
        return samples;
    }
};

std::vector<PackedRow> pack_all(Packer& packer, std::vector<Sample> samples) {
    std::vector<PackedRow> rows;
    for (Sample& sample : samples) {
        for (PackedRow& row : packer.push(std::move(sample))) {
            rows.push_back(std::move(row));
        }
    }
    return rows;
}

/// What training sees of a row: everything but its index and its count of samples.
auto content(const PackedRow& row) {
    std::vector<std::tuple<SampleId, std::int32_t, std::int32_t, std::int32_t, std::int32_t>> docs;
    for (const Document& d : row.documents) {
        docs.emplace_back(d.id, d.begin, d.length, d.first_block, d.num_blocks);
    }
    return std::make_tuple(row.next,
                           row.end,
                           row.tokens,
                           row.positions,
                           docs,
                           row.blocks.anchors,
                           row.blocks.head_rows,
                           row.blocks.labels,
                           row.blocks.weights,
                           row.blocks.weight_sum);
}

/// Lengths like those of chat data: log-normal with a median of 600 tokens, cut at 4096.
std::vector<std::int64_t> chat_lengths(std::size_t count, std::uint64_t seed) {
    RandomStream random(seed, Purpose::Test, 0, 0);
    std::vector<std::int64_t> lengths(count);
    for (std::int64_t& length : lengths) {
        const double value = 600 * std::exp(0.9 * random.normal());
        length = std::clamp<std::int64_t>(static_cast<std::int64_t>(value), 20, 4096);
    }
    return lengths;
}

/// Mean share of a row that is filled: of its tokens, or of its anchors where it closed at these.
double mean_fill(const PackOptions& options, const std::vector<PackedRow>& rows) {
    double sum = 0;
    for (const PackedRow& row : rows) {
        const double tokens =
            static_cast<double>(row.num_tokens()) / static_cast<double>(options.row_tokens);
        const double anchors =
            static_cast<double>(row.blocks.num_blocks()) / static_cast<double>(options.row_anchors);
        sum += std::max(tokens, anchors);
    }
    return sum / static_cast<double>(rows.size());
}

/// Lengths of which two thirds are short and one third is long, as where two data sets are mixed.
std::vector<std::int64_t> mixed_lengths(std::size_t count, std::uint64_t seed) {
    RandomStream random(seed, Purpose::Test, 1, 0);
    std::vector<std::int64_t> lengths(count);
    for (std::int64_t& length : lengths) {
        const bool is_long = random.below(3) == 0;
        length =
            static_cast<std::int64_t>(is_long ? 2000 + random.below(2097) : 40 + random.below(400));
    }
    return lengths;
}

/// Rows over the least number that could hold everything: 1 is perfect.
double row_overhead(const PackOptions& options, const std::vector<PackedRow>& rows) {
    std::int64_t tokens = 0;
    std::int64_t anchors = 0;
    for (const PackedRow& row : rows) {
        tokens += row.num_tokens();
        anchors += row.blocks.num_blocks();
    }
    const double least =
        std::max(static_cast<double>(tokens) / static_cast<double>(options.row_tokens),
                 static_cast<double>(anchors) / static_cast<double>(options.row_anchors));
    return static_cast<double>(rows.size()) / std::ceil(least);
}

std::vector<Sample> one_window(const FakeData& data) {
    std::vector<Sample> samples =
        data.from({}, 1, std::max<std::int64_t>(1, std::ssize(data.lengths)));
    samples.pop_back();
    return samples;
}

TEST_SUITE("data.packer") {
    TEST_CASE("epoch_order: a permutation of the samples that changes with seed and epoch") {
        const std::vector<SampleId> samples{3, 5, 8, 13, 21, 34, 55, 89};
        const auto first = epoch_order(samples, 1, 0);
        CHECK(std::ranges::is_permutation(first, samples));
        CHECK(epoch_order(samples, 1, 0) == first);
        CHECK(epoch_order(samples, 2, 0) != first);
        CHECK(epoch_order(samples, 1, 1) != first);
        CHECK(epoch_order({}, 1, 0).empty());
    }

    TEST_CASE("packer: keeps every document whole, once, and within both limits") {
        const FakeData data{.lengths = chat_lengths(600, 2)};
        for (const std::int64_t row_anchors : {512, 1000, 100000}) {
            CAPTURE(row_anchors);
            const PackOptions options{.row_tokens = 4096, .row_anchors = row_anchors, .seed = 1};
            const std::vector<Sample> samples = one_window(data);
            const auto rows = Packer::pack_window(options, samples);
            std::set<SampleId> seen;
            for (const PackedRow& row : rows) {
                CHECK(row.num_tokens() <= options.row_tokens);
                CHECK(row.blocks.num_blocks() <= row_anchors);
                CHECK(row.num_samples == std::ssize(row.documents));
                CHECK(row.dropped.empty());
                std::int32_t begin = 0;
                for (const Document& document : row.documents) {
                    CHECK(seen.insert(document.id).second);
                    CHECK(document.begin == begin);
                    CHECK(document.length == data.lengths[static_cast<std::size_t>(document.id)]);
                    CHECK(document.num_blocks > 0);
                    begin += document.length;
                }
                CHECK(begin == row.num_tokens());
            }
            CHECK(seen.size() == data.lengths.size());
        }
    }

    TEST_CASE("packer: fills rows of realistic data nearly as well as is possible") {
        struct Case {
            std::int64_t row_anchors;
            std::int64_t max_anchors;
            double at_most;
        };

        const FakeData data{.lengths = chat_lengths(2048, 3)};
        // Limited by anchors (the defaults), by tokens, and by both.
        const std::vector<Case> cases{{2048, 512, 1.02}, {1 << 20, 512, 1.01}, {2048, 225, 1.04}};
        for (const Case& c : cases) {
            CAPTURE(c.row_anchors);
            CAPTURE(c.max_anchors);
            const PackOptions options{.row_anchors = c.row_anchors,
                                      .block = {.max_anchors = c.max_anchors}};
            const auto rows = Packer::pack_window(options, one_window(data));
            const double overhead = row_overhead(options, rows);
            CHECK(overhead <= c.at_most);
        }
    }

    TEST_CASE("packer: rows of chat data are filled to 97 % in every window") {
        struct Case {
            std::string what;
            std::vector<std::int64_t> (*lengths)(std::size_t, std::uint64_t);
            std::int64_t row_anchors;
            std::int64_t max_anchors;
        };

        for (const Case& c : {Case{"tokens decide", chat_lengths, 1 << 20, 512},
                              Case{"tokens decide, two kinds of rows", mixed_lengths, 1 << 20, 512},
                              Case{"anchors decide", chat_lengths, 2048, 512},
                              Case{"both are scarce", chat_lengths, 2048, 225}}) {
            for (std::uint64_t seed = 1; seed <= 4; ++seed) {
                CAPTURE(c.what);
                CAPTURE(seed);
                const PackOptions options{.row_anchors = c.row_anchors,
                                          .block = {.max_anchors = c.max_anchors}};
                const FakeData data{.lengths = c.lengths(2048, seed)};
                const double fill =
                    mean_fill(options, Packer::pack_window(options, one_window(data)));
                CHECK(fill >= 0.97);
            }
        }
    }

    TEST_CASE("packer: loses no token and no mask of any sample, whatever the samples are") {
        RandomStream random(23, Purpose::Test, 0, 0);
        for (int round = 0; round < 60; ++round) {
            CAPTURE(round);
            std::vector<Sample> samples(1 + random.below(60));
            for (std::size_t i = 0; i < samples.size(); ++i) {
                samples[i].ref = {.place = static_cast<std::int64_t>(i),
                                  .id = static_cast<SampleId>(100 + i)};
                samples[i].tokens.resize(random.below(120));
                for (TokenId& token : samples[i].tokens) {
                    token = static_cast<TokenId>(random.below(1000));
                }
                samples[i].trainable.resize(samples[i].tokens.size());
                for (std::uint8_t& bit : samples[i].trainable) {
                    bit = random.below(3) > 0 ? 1 : 0;
                }
            }
            const PackOptions options{
                .row_tokens = 60 + static_cast<std::int64_t>(random.below(200)),
                .row_anchors = 10 + static_cast<std::int64_t>(random.below(200)),
                .block = {.block_size = 4, .max_anchors = 1000}};
            const auto rows = Packer::pack_window(options, samples);
            std::size_t found = 0;
            for (const PackedRow& row : rows) {
                found += row.dropped.size();
                for (const Document& document : row.documents) {
                    ++found;
                    const Sample& sample = samples[static_cast<std::size_t>(document.id - 100)];
                    const std::vector<TokenId> tokens(
                        row.tokens.begin() + document.begin,
                        row.tokens.begin() + document.begin + document.length);
                    CHECK(tokens == sample.tokens);
                    // All places for a block are drawn, and slot 1 of each is a label of its own.
                    CHECK(document.num_blocks == std::ssize(anchor_candidates(sample.trainable)));
                }
                for (const DroppedSample& dropped : row.dropped) {
                    const Sample& sample = samples[static_cast<std::size_t>(dropped.id - 100)];
                    CHECK(anchor_candidates(sample.trainable).empty());
                }
            }
            CHECK(found == samples.size());
        }
    }

    TEST_CASE("packer: the order of rows says nothing about the lengths in them") {
        double correlation = 0;
        constexpr int kWindows = 20;
        for (std::uint64_t w = 0; w < kWindows; ++w) {
            const FakeData data{.lengths = chat_lengths(512, 100 + w), .seed = w};
            const PackOptions options{.row_anchors = 1 << 20, .block = {.max_anchors = 4}};
            const auto rows = Packer::pack_window(options, one_window(data));
            std::vector<double> x;
            std::vector<double> y;
            for (const PackedRow& row : rows) {
                x.push_back(static_cast<double>(x.size()));
                y.push_back(static_cast<double>(row.num_tokens()) /
                            static_cast<double>(row.documents.size()));
            }
            const auto mean = [](const std::vector<double>& v) {
                return std::accumulate(v.begin(), v.end(), 0.0) / static_cast<double>(v.size());
            };
            const double mean_x = mean(x);
            const double mean_y = mean(y);
            double xy = 0;
            double xx = 0;
            double yy = 0;
            for (std::size_t i = 0; i < x.size(); ++i) {
                xy += (x[i] - mean_x) * (y[i] - mean_y);
                xx += (x[i] - mean_x) * (x[i] - mean_x);
                yy += (y[i] - mean_y) * (y[i] - mean_y);
            }
            correlation += xy / std::sqrt(xx * yy) / kWindows;
        }
        // Of about 50 rows each, so the mean of 20 has a standard deviation of 0.032.
        CHECK(std::abs(correlation) < 0.1);
    }

    TEST_CASE("packer: a document larger than a row gets a row of its own") {
        const FakeData data{.lengths = {30, 100, 40, 12}};
        const PackOptions by_tokens{.row_tokens = 90, .row_anchors = 1000};
        const PackOptions by_anchors{.row_tokens = 1000, .row_anchors = 60};
        for (const PackOptions& options : {by_tokens, by_anchors}) {
            const auto rows = Packer::pack_window(options, one_window(data));
            REQUIRE(rows.size() == 2);
            for (const PackedRow& row : rows) {
                CHECK((row.documents.size() == 1) == (row.documents.front().id == 1));
            }
        }
    }

    TEST_CASE("packer: never thins the anchors of a document") {
        const FakeData data{.lengths = {900, 900, 900}};
        const PackOptions options{.row_anchors = 700};
        const auto rows = Packer::pack_window(options, one_window(data));
        REQUIRE(rows.size() == 3);
        for (const PackedRow& row : rows) {
            CHECK(row.blocks.num_blocks() == 512);
        }
    }

    TEST_CASE("packer: names what it drops and returns it with the window's first row") {
        const FakeData data{.lengths = {20, 20, 20, 20, 0}, .without_anchor = {1}, .refused = {3}};
        const PackOptions options{.row_tokens = 25};
        const auto rows = Packer::pack_window(options, one_window(data));
        REQUIRE(rows.size() == 2);
        CHECK(rows[0].num_samples == 4);
        CHECK(rows[1].num_samples == 1);
        REQUIRE(rows[0].dropped.size() == 3);
        CHECK(rows[1].dropped.empty());
        for (const DroppedSample& dropped : rows[0].dropped) {
            const std::string expected =
                dropped.id == 1 ? kNoAnchor : (dropped.id == 3 ? "refused" : kNoTokens);
            CHECK(dropped.reason == expected);
        }
    }

    TEST_CASE("packer: a window without a usable sample gives one empty row") {
        const FakeData data{.lengths = {9, 9, 9}, .refused = {0, 1, 2}};
        Packer packer({.window = 2}, {});
        const auto rows = pack_all(packer, data.from({}, 1, 2));
        REQUIRE(rows.size() == 3);
        CHECK(rows[0].empty());
        CHECK(rows[0].num_samples == 2);
        CHECK(rows[0].next == Cursor{0, 1, 0});
        CHECK(rows[1].num_samples == 1);
        CHECK(rows[1].next == Cursor{1, 0, 0});
        CHECK(rows[2].end);
        CHECK(rows[2].num_samples == 1);
    }

    TEST_CASE("packer: END alone gives one row with its own sample") {
        Packer packer({}, {});
        const auto rows = packer.push({.ref = {.end = true}});
        REQUIRE(rows.size() == 1);
        CHECK(rows[0].end);
        CHECK(rows[0].empty());
        CHECK(rows[0].num_samples == 1);
        CHECK(rows[0].index == 0);
    }

    TEST_CASE("packer: returns every sample once and resumes from every row as if never stopped") {
        constexpr std::int64_t kEpochs = 3;
        RandomStream random(17, Purpose::Test, 0, 0);
        for (const std::int64_t num_samples : {1, 2, 5, 8, 13}) {
            FakeData data;
            for (std::int64_t i = 0; i < num_samples; ++i) {
                data.lengths.push_back(1 + static_cast<std::int64_t>(random.below(40)));
            }
            data.refused = {2, 9};
            data.without_anchor = {4};
            for (std::int64_t window = 1; window <= num_samples + 1; ++window) {
                CAPTURE(num_samples);
                CAPTURE(window);
                const PackOptions options{.window = window,
                                          .row_tokens = 60,
                                          .row_anchors = 25,
                                          .block = {.block_size = 4, .max_anchors = 10},
                                          .seed = 5};
                Packer whole(options, {});
                const auto rows = pack_all(whole, data.from({}, kEpochs, window));
                std::int64_t counted = 0;
                std::set<std::pair<std::int64_t, SampleId>> seen;
                Cursor before;
                for (std::size_t i = 0; i < rows.size(); ++i) {
                    CHECK(rows[i].index == static_cast<std::int64_t>(i));
                    CHECK(rows[i].end == (i + 1 == rows.size()));
                    counted += rows[i].num_samples;
                    for (const Document& document : rows[i].documents) {
                        CHECK(seen.emplace(before.epoch, document.id).second);
                    }
                    for (const DroppedSample& dropped : rows[i].dropped) {
                        CHECK(seen.emplace(before.epoch, dropped.id).second);
                    }
                    before = rows[i].next;
                }
                CHECK(counted == num_samples * kEpochs + 1);
                CHECK(std::ssize(seen) == num_samples * kEpochs);

                for (std::size_t consumed = 1; consumed < rows.size(); ++consumed) {
                    CAPTURE(consumed);
                    const Cursor start = rows[consumed - 1].next;
                    const auto samples = data.from(start, kEpochs, window);
                    Packer resumed(options, start);
                    const auto rest = pack_all(resumed, samples);
                    REQUIRE(rest.size() == rows.size() - consumed);
                    std::int64_t returned = 0;
                    bool equal = true;
                    for (std::size_t i = 0; i < rest.size(); ++i) {
                        equal = equal && content(rest[i]) == content(rows[consumed + i]);
                        equal = equal && rest[i].index == static_cast<std::int64_t>(i);
                        returned += rest[i].num_samples;
                    }
                    CHECK(equal);
                    CHECK(returned == std::ssize(samples));
                }
            }
        }
    }

    TEST_CASE("packer: a window that END cuts short does not move the cursor") {
        const FakeData data{.lengths = {20, 20, 20, 20, 20, 20}};
        const PackOptions options{.window = 4, .row_tokens = 20};
        Packer packer(options, {});
        auto samples = data.from({}, 1, 4);
        samples.resize(6);
        samples.back() = {.ref = {.index = 5, .end = true}};
        const auto rows = pack_all(packer, samples);
        REQUIRE(rows.size() == 6);
        CHECK(rows[2].next == Cursor{0, 0, 3});
        CHECK(rows[3].next == Cursor{0, 1, 0});
        CHECK(rows[4].next == Cursor{0, 1, 0});
        CHECK(rows[4].documents.size() == 1);
        CHECK(rows[5].end);
        CHECK(rows[5].next == Cursor{0, 1, 0});
    }

    TEST_CASE("packer: refuses a position that the window does not have") {
        const FakeData data{.lengths = {20, 20}};
        Packer packer({.window = 2}, {.row_in_window = 1});
        auto samples = data.from({}, 1, 2);
        CHECK(packer.push(samples[0]).empty());
        try {
            packer.push(samples[1]);
            FAIL("no error");
        } catch (const Error& error) {
            CHECK(error.kind() == ErrorKind::Config);
            CHECK(std::string(error.what()).find("got row 1, expected less than 1") !=
                  std::string::npos);
        }
    }

    TEST_CASE("packer: refuses samples out of order and after the end") {
        const FakeData data{.lengths = {20, 20, 20}};
        const auto samples = data.from({}, 1, 8);
        Packer packer({.window = 8}, {});
        CHECK_THROWS_AS(packer.push(samples[1]), Error);
        Packer ended({.window = 8}, {});
        ended.push(samples.back());
        CHECK_THROWS_AS(ended.push(samples[0]), Error);
    }

    TEST_CASE("packer: held-out rows have the same blocks in every epoch") {
        const FakeData data{.lengths = chat_lengths(20, 4)};
        const PackOptions options{.held_out = true};
        auto samples = one_window(data);
        const auto first = Packer::pack_window(options, samples);
        for (Sample& sample : samples) {
            sample.ref.epoch = 3;
        }
        const auto later = Packer::pack_window(options, samples);
        REQUIRE(first.size() == later.size());
        for (std::size_t i = 0; i < first.size(); ++i) {
            CHECK(first[i].blocks.anchors == later[i].blocks.anchors);
        }
    }
}

}  // namespace
}  // namespace dflash::data
