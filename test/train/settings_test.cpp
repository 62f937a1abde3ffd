// SPDX-License-Identifier: Apache-2.0
#include <dflash/core/error.hpp>
#include <dflash/train/settings.hpp>

#include <cstdint>
#include <doctest/doctest.h>
#include <limits>

namespace dflash::train {

TEST_SUITE("train.settings") {
    TEST_CASE("sizes whose products would overflow are refused by their setting") {
        for (const char* name : {"train.rows_per_step",
                                 "draft.anchors",
                                 "draft.intermediate_size",
                                 "draft.num_heads",
                                 "draft.num_kv_heads",
                                 "draft.head_dim",
                                 "draft.sliding_window",
                                 "draft.mask_token_id",
                                 "data.row_tokens",
                                 "data.row_anchors",
                                 "data.max_length",
                                 "data.window"}) {
            CAPTURE(name);
            Settings settings;
            SettingList list = settings.list();
            Setting& setting = list.find(name, "test");
            CHECK_THROWS_AS(
                setting.assign(
                    std::numeric_limits<std::int64_t>::max(), SettingOrigin::SetOption, "--set"),
                Error);
            // One more than the 32 bits of a token or a position.
            CHECK_THROWS_AS(
                setting.assign(std::int64_t{1} << 32, SettingOrigin::SetOption, "--set"), Error);
            CHECK_NOTHROW(setting.assign(std::int64_t{64}, SettingOrigin::SetOption, "--set"));
        }
    }
}

}  // namespace dflash::train
