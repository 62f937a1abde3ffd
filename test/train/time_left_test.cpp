// SPDX-License-Identifier: Apache-2.0
#include <dflash/train/time_left.hpp>

#include <doctest/doctest.h>

namespace dflash::train {

TEST_SUITE("train.time_left") {
    TEST_CASE("there is no estimate before there is a speed") {
        TimeLeft time;
        CHECK_FALSE(time.left_s());
        time.add(10, 0.1);
        CHECK_FALSE(time.left_s());
        time.add(20, 0.1);
        CHECK_FALSE(time.left_s());
    }

    TEST_CASE("a steady run has what its speed says left") {
        TimeLeft time;
        for (int i = 1; i <= 400; ++i) {
            time.add(10 * i, 0.002 * i);
            if (i > 1) {
                CHECK(*time.left_s() == doctest::Approx((1 - 0.002 * i) / 0.0002));
            }
        }
    }

    TEST_CASE("what was long ago does not count: the speed is that of the window") {
        TimeLeft time(/*window_s=*/100);
        time.add(0, 0);
        time.add(1000, 0.1);  // slow
        for (int i = 1; i <= 200; ++i) {
            time.add(1000 + i, 0.1 + 0.001 * i);  // ten times as fast
        }
        CHECK(*time.left_s() == doctest::Approx(0.7 / 0.001).epsilon(0.02));
    }

    TEST_CASE("a run that was resumed begins anew where it was") {
        TimeLeft time;
        time.add(5000, 0.5);
        time.add(5100, 0.52);
        CHECK(*time.left_s() == doctest::Approx(0.48 / 0.0002));
    }

    TEST_CASE("a run that is done has nothing left") {
        TimeLeft time;
        time.add(0, 0);
        time.add(50, 1);
        CHECK(*time.left_s() == 0);
    }
}

}  // namespace dflash::train
