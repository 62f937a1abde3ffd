// SPDX-License-Identifier: Apache-2.0
#include <dflash/train/row_stream.hpp>

#include <algorithm>
#include <doctest/doctest.h>
#include <map>
#include <numeric>

namespace dflash::train {
namespace {

data::PackOptions small_options() {
    data::PackOptions options;
    options.window = 7;
    options.row_tokens = 64;
    options.row_anchors = 40;
    options.block = {.block_size = 4, .loss_decay_gamma = 4, .max_anchors = 8};
    return options;
}

// Documents of 9 to 28 tokens, all trainable; every fifth sample is dropped.
data::Sample sample_of(const data::SampleRef& ref) {
    data::Sample sample;
    sample.ref = ref;
    if (ref.end) {
        return sample;
    }
    if (ref.id % 5 == 4) {
        sample.dropped = "test";
        return sample;
    }
    sample.tokens.assign(static_cast<std::size_t>(9 + ref.id % 20), static_cast<TokenId>(ref.id));
    sample.trainable.assign(sample.tokens.size(), 1);
    return sample;
}

std::vector<data::PackedRow> all_rows(data::Cursor start,
                                      std::int64_t rows_per_step,
                                      int num_drafters,
                                      std::int64_t epochs) {
    std::vector<SampleId> ids(23);
    std::iota(ids.begin(), ids.end(), 100);
    const data::PackOptions options = small_options();
    EpochSource source(
        ids, EpochSizes(std::ssize(ids)), {}, options.seed, options.window, start, epochs);
    StepRowPacker packer(options, start, rows_per_step, num_drafters);
    std::vector<data::PackedRow> rows;
    for (;;) {
        const data::SampleRef ref = source.next();
        for (data::PackedRow& row : packer.push(sample_of(ref))) {
            rows.push_back(std::move(row));
        }
        if (ref.end) {
            return rows;
        }
    }
}

std::vector<data::PackedRow> real_rows(const std::vector<data::PackedRow>& rows) {
    std::vector<data::PackedRow> real;
    std::copy_if(rows.begin(), rows.end(), std::back_inserter(real), [](const data::PackedRow& r) {
        return !r.empty();
    });
    return real;
}

}  // namespace

TEST_SUITE("train.row_stream") {
    TEST_CASE("every usable sample appears once an epoch, and every sample is returned once") {
        const auto rows = all_rows({}, 3, 2, 2);
        std::map<SampleId, int> seen;
        std::int64_t returned = 0;
        for (const data::PackedRow& row : rows) {
            returned += row.num_samples;
            for (const data::Document& document : row.documents) {
                ++seen[document.id];
            }
        }
        CHECK(rows.back().end);
        CHECK(returned == 2 * 23 + 1);  // END counts as one
        for (SampleId id = 100; id < 123; ++id) {
            CAPTURE(id);
            CHECK(seen[id] == (id % 5 == 4 ? 0 : 2));
        }
    }

    TEST_CASE("row j of every step lies at an index that is j modulo the drafters") {
        for (int drafters = 1; drafters <= 5; ++drafters) {
            for (std::int64_t rows_per_step = 1; rows_per_step <= 6; ++rows_per_step) {
                CAPTURE(drafters);
                CAPTURE(rows_per_step);
                const auto rows = all_rows({}, rows_per_step, drafters, 2);
                std::int64_t real = 0;
                for (std::size_t i = 0; i < rows.size(); ++i) {
                    CHECK(rows[i].index == static_cast<std::int64_t>(i));
                    if (!rows[i].empty()) {
                        CHECK(rows[i].index % drafters == (real % rows_per_step) % drafters);
                        ++real;
                    }
                }
            }
        }
    }

    TEST_CASE("the rows do not depend on the number of drafters") {
        const auto one = real_rows(all_rows({}, 4, 1, 2));
        for (int drafters = 2; drafters <= 4; ++drafters) {
            const auto many = real_rows(all_rows({}, 4, drafters, 2));
            REQUIRE(many.size() == one.size());
            for (std::size_t i = 0; i < one.size(); ++i) {
                CHECK(many[i].tokens == one[i].tokens);
                CHECK(many[i].blocks.anchors == one[i].blocks.anchors);
                CHECK(many[i].next == one[i].next);
            }
        }
    }

    TEST_CASE("starting at any row's cursor continues with the next row") {
        const auto rows = real_rows(all_rows({}, 3, 2, 2));
        for (std::size_t i = 0; i + 1 < rows.size(); ++i) {
            CAPTURE(i);
            const auto rest = real_rows(all_rows(rows[i].next, 3, 2, 2));
            REQUIRE(rest.size() == rows.size() - i - 1);
            for (std::size_t j = 0; j < rest.size(); ++j) {
                CHECK(rest[j].tokens == rows[i + 1 + j].tokens);
                CHECK(rest[j].blocks.anchors == rows[i + 1 + j].blocks.anchors);
                CHECK(rest[j].next == rows[i + 1 + j].next);
            }
        }
    }

    TEST_CASE("anchors are drawn anew every epoch, the order too") {
        const auto first = real_rows(all_rows({}, 3, 1, 1));
        const auto both = real_rows(all_rows({}, 3, 1, 2));
        bool differs = false;
        for (std::size_t i = first.size(); i < both.size(); ++i) {
            differs = differs || both[i].tokens != both[i - first.size()].tokens;
        }
        CHECK(differs);
    }

    TEST_CASE("samples added in mid-epoch enter at the next one and change nothing before") {
        std::vector<SampleId> all(1100);
        std::iota(all.begin(), all.end(), 0);
        const std::vector<SampleId> old(all.begin(), all.begin() + 902);
        const data::PackOptions options = small_options();
        const auto rows_of = [&](const std::vector<SampleId>& ids,
                                 const EpochSizes& sizes,
                                 data::Cursor start,
                                 int drafters) {
            EpochSource source(ids, sizes, {}, options.seed, options.window, start, 4);
            StepRowPacker packer(options, start, 3, drafters);
            std::vector<data::PackedRow> rows;
            for (;;) {
                const data::SampleRef ref = source.next();
                for (data::PackedRow& row : packer.push(sample_of(ref))) {
                    rows.push_back(std::move(row));
                }
                if (ref.end) {
                    return rows;  // with empty ones, which also move on from epoch to epoch
                }
            }
        };
        const auto before = rows_of(old, EpochSizes(902), {}, 1);
        const auto stop = std::ranges::find_if(before, [](const data::PackedRow& row) {
            return row.next.epoch == 1 && row.next.window > 40 && row.next.row_in_window > 0;
        });
        REQUIRE(stop != before.end());
        EpochSizes sizes(902);
        sizes.grow(2, 1100);
        const auto rest_before = real_rows({stop + 1, before.end()});
        for (int drafters = 1; drafters <= 3; ++drafters) {
            CAPTURE(drafters);
            const auto after = rows_of(all, sizes, stop->next, drafters);
            const auto rest_after = real_rows(after);
            std::map<std::int64_t, std::map<SampleId, int>> uses;  // by epoch
            const auto count = [&](std::int64_t epoch, auto begin, auto end) {
                for (auto row = begin; row != end; ++row) {
                    for (const data::Document& document : row->documents) {
                        ++uses[epoch][document.id];
                    }
                    epoch = row->next.epoch;
                }
            };
            count(0, before.begin(), stop + 1);
            count(1, after.begin(), after.end() - 1);  // without END
            for (const SampleId id : all) {
                CAPTURE(id);
                const bool usable = id % 5 != 4;
                for (std::int64_t epoch = 0; epoch < 4; ++epoch) {
                    CAPTURE(epoch);
                    CHECK(uses[epoch][id] == (usable && (epoch > 1 || id < 902) ? 1 : 0));
                }
            }
            CHECK(uses.size() == 4);
            // What is left of the interrupted epoch is what it would have been.
            std::size_t same = 0;
            for (; rest_after[same].next.epoch == 1; ++same) {
                REQUIRE(same < rest_before.size());
                CHECK(rest_after[same].tokens == rest_before[same].tokens);
                CHECK(rest_after[same].blocks.anchors == rest_before[same].blocks.anchors);
                CHECK(rest_after[same].next == rest_before[same].next);
            }
            CHECK(same > 50);
        }
    }

    TEST_CASE("files with weights are mixed in every window, and epochs have their own draws") {
        // Files of 600 and 400 rows, of which an epoch takes 60 % and all twice.
        std::vector<SampleId> ids(1000);
        std::iota(ids.begin(), ids.end(), 0);
        const data::Mixture mixture({0, 600}, {0.6, 2});
        EpochSource source(ids, EpochSizes(1000), mixture, 3, 100, {}, 2);
        std::vector<std::map<SampleId, int>> uses(2);
        std::vector<int> of_first_file(24);  // by windows of 100
        for (data::SampleRef ref = source.next(); !ref.end; ref = source.next()) {
            const auto epoch = static_cast<std::size_t>(ref.epoch);
            ++uses[epoch][ref.id];
            of_first_file[epoch * 12 + static_cast<std::size_t>(ref.place / 100)] +=
                ref.id < 600 ? 1 : 0;
            CHECK(ref.last_of_epoch == (ref.place == 360 + 800 - 1));
        }
        for (std::size_t epoch = 0; epoch < 2; ++epoch) {
            int first = 0;
            for (const auto& [id, count] : uses[epoch]) {
                CHECK(count == (id < 600 ? 1 : 2));
                first += id < 600 ? 1 : 0;
            }
            CHECK(first == 360);
            CHECK(uses[epoch].size() == 360 + 400);
            // 31 of 100 on average; the last window has 60 places.
            for (std::size_t window = 0; window < 11; ++window) {
                CHECK(of_first_file[epoch * 12 + window] > 10);
                CHECK(of_first_file[epoch * 12 + window] < 55);
            }
        }
        CHECK(uses[0] != uses[1]);

        // Resumed in the second epoch it goes on with the same samples.
        EpochSource whole(ids, EpochSizes(1000), mixture, 3, 100, {}, 2);
        EpochSource resumed(
            ids, EpochSizes(1000), mixture, 3, 100, data::Cursor{.epoch = 1, .window = 4}, 2);
        data::SampleRef ref = whole.next();
        while (ref.epoch < 1 || ref.place < 400) {
            ref = whole.next();
        }
        for (; !ref.end; ref = whole.next()) {
            const data::SampleRef again = resumed.next();
            CHECK(again.id == ref.id);
            CHECK(again.place == ref.place);
        }
        CHECK(resumed.next().end);
    }

    TEST_CASE("a run bounded by tokens never ends by itself") {
        EpochSource source({1, 2, 3}, EpochSizes(3), {}, 0, 7, {}, std::nullopt);
        for (int i = 0; i < 100; ++i) {
            const data::SampleRef ref = source.next();
            CHECK_FALSE(ref.end);
            CHECK(ref.index == i);
            CHECK(ref.epoch == i / 3);
        }
    }
}

}  // namespace dflash::train
