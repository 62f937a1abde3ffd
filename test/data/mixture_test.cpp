// SPDX-License-Identifier: Apache-2.0
#include <dflash/data/mixture.hpp>

#include <algorithm>
#include <doctest/doctest.h>
#include <map>
#include <numeric>

namespace dflash::data {

namespace {

std::vector<SampleId> ids_from(SampleId begin, SampleId end) {
    std::vector<SampleId> ids(static_cast<std::size_t>(end - begin));
    std::iota(ids.begin(), ids.end(), begin);
    return ids;
}

std::map<SampleId, int> counts_of(const std::vector<SampleId>& ids) {
    std::map<SampleId, int> counts;
    for (const SampleId id : ids) {
        ++counts[id];
    }
    return counts;
}

}  // namespace

TEST_SUITE("data.mixture") {
    TEST_CASE("mixture: weights of 1 change nothing") {
        const std::vector<SampleId> ids = {0, 3, 4, 9};
        for (const Mixture& mixture : {Mixture(), Mixture({0, 4}, {1, 1})}) {
            CHECK(mixture.is_plain());
            CHECK(mixture.num_samples(ids) == 4);
            CHECK(mixture.draw(ids, 1, 2) == ids);
            CHECK(mixture.to_text().empty());
        }
    }

    TEST_CASE("mixture: an epoch takes each file as often as its weight says") {
        // Files of 100, 50 and 7 rows.
        const Mixture mixture({0, 100, 150}, {0.7, 2, 1.5});
        const std::vector<SampleId> ids = ids_from(0, 157);
        CHECK(mixture.num_samples(ids) == 70 + 100 + 7 + 4);
        CHECK(mixture.to_text() == "0.7, 2, 1.5");
        std::map<SampleId, int> over_epochs;
        for (std::int64_t epoch = 0; epoch < 100; ++epoch) {
            const std::vector<SampleId> drawn = mixture.draw(ids, 5, epoch);
            REQUIRE(static_cast<std::int64_t>(drawn.size()) == mixture.num_samples(ids));
            CHECK(drawn == mixture.draw(ids, 5, epoch));
            for (const auto& [id, count] : counts_of(drawn)) {
                CHECK((id < 100 ? count == 1 : id < 150 ? count == 2 : count == 1 || count == 2));
                over_epochs[id] += count;
            }
        }
        CHECK(mixture.draw(ids, 5, 0) != mixture.draw(ids, 5, 1));
        CHECK(mixture.draw(ids, 5, 0) != mixture.draw(ids, 6, 0));
        for (SampleId id = 0; id < 100; ++id) {
            CAPTURE(id);
            // 70 of 100 on average; 5 standard deviations are 23.
            CHECK(over_epochs[id] > 47);
            CHECK(over_epochs[id] < 93);
        }
    }

    TEST_CASE(
        "mixture: samples that are not there are not drawn, rows of later files belong to the "
        "last") {
        const Mixture mixture({0, 10}, {0.5, 2});
        const std::vector<SampleId> ids = {1, 2, 5, 8, 12, 40};
        CHECK(mixture.num_samples(ids) == 2 + 4);
        for (const SampleId id : mixture.draw(ids, 1, 1)) {
            CHECK(std::find(ids.begin(), ids.end(), id) != ids.end());
        }
        // Rows that come later do not change what is drawn of the files before them.
        const std::vector<SampleId> more = {1, 2, 5, 8, 12, 40, 41};
        const std::vector<SampleId> before = mixture.draw(ids, 1, 1);
        const std::vector<SampleId> now = mixture.draw(more, 1, 1);
        CHECK(std::equal(before.begin(), before.begin() + 2, now.begin()));
    }
}

}  // namespace dflash::data
