// SPDX-License-Identifier: Apache-2.0
#include <dflash/train/evaluator.hpp>
#include <dflash/train/progress.hpp>

#include <doctest/doctest.h>

namespace dflash::train {

TEST_SUITE("train.progress") {
    TEST_CASE("empty rows move the cursor but count no rows") {
        Progress progress;
        data::PackedRow row;
        row.next = {1, 2, 3};
        row.dropped.resize(4);
        progress.consume(row);
        CHECK(progress.rows == 0);
        CHECK(progress.samples == 4);
        CHECK(progress.cursor == data::Cursor{1, 2, 3});
        row.tokens = {1, 2, 3};
        row.documents.push_back({});
        progress.consume(row);
        CHECK(progress.rows == 1);
        CHECK(progress.tokens == 3);
    }

    TEST_CASE("the fraction done goes by hours, tokens or epochs") {
        Progress progress;
        progress.samples = 150;
        progress.tokens = 1000;
        progress.trained_s = 1800;
        TrainSettings settings;
        settings.epochs = 3;
        CHECK(RunLength(settings, EpochSizes(100)).fraction_done(progress) == doctest::Approx(0.5));
        settings.tokens = 4000;
        CHECK(RunLength(settings, EpochSizes(100)).fraction_done(progress) ==
              doctest::Approx(0.25));
        settings.hours = 5.0;
        CHECK(RunLength(settings, EpochSizes(100)).fraction_done(progress) == doctest::Approx(0.1));
    }

    TEST_CASE("a run ends at its length or at max_steps, which the schedule does not see") {
        Progress progress;
        progress.samples = 50;
        progress.step = 10;
        TrainSettings settings;
        settings.epochs = 1;
        CHECK_FALSE(RunLength(settings, EpochSizes(100)).finished(progress));
        settings.max_steps = 10;
        CHECK(RunLength(settings, EpochSizes(100)).finished(progress));
        CHECK(RunLength(settings, EpochSizes(100)).fraction_done(progress) == doctest::Approx(0.5));
        settings.max_steps.reset();
        progress.samples = 100;
        CHECK(RunLength(settings, EpochSizes(100)).finished(progress));
    }

    TEST_CASE("epochs count the samples they have, also where the data grew in between") {
        EpochSizes sizes(100);
        CHECK(sizes.in_epochs(0) == 0);
        CHECK(sizes.in_epochs(6) == 600);
        sizes.grow(4, 150);  // replaced before it was used
        sizes.grow(4, 200);
        sizes.grow(6, 250);
        CHECK(sizes.in_epoch(0) == 100);
        CHECK(sizes.in_epoch(3) == 100);
        CHECK(sizes.in_epoch(4) == 200);
        CHECK(sizes.in_epoch(5) == 200);
        CHECK(sizes.in_epoch(60) == 250);
        CHECK(sizes.in_epochs(4) == 400);
        CHECK(sizes.in_epochs(5) == 600);
        CHECK(sizes.in_epochs(8) == 400 + 400 + 500);
        TrainSettings settings;
        settings.epochs = 5;
        Progress progress;
        progress.samples = 450;
        CHECK(RunLength(settings, sizes).fraction_done(progress) == doctest::Approx(0.75));
        CHECK_FALSE(RunLength(settings, sizes).finished(progress));
        progress.samples = 600;
        CHECK(RunLength(settings, sizes).finished(progress));
    }

    TEST_CASE("held-out samples are a share within limits") {
        CHECK(num_held_out(0.005, 1'000'000) == 512);
        CHECK(num_held_out(0.005, 10'000) == 50);
        CHECK(num_held_out(0.005, 1'000) == 16);
        CHECK(num_held_out(0.005, 164) == 16);
        CHECK(num_held_out(0.005, 100) == 10);
        CHECK(num_held_out(0.1, 164) == 17);
        CHECK(num_held_out(0, 164) == 0);
        CHECK(num_held_out(0.005, 5) == 1);
    }
}

}  // namespace dflash::train
