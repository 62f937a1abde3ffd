// SPDX-License-Identifier: Apache-2.0
#include <dflash/core/error.hpp>
#include <dflash/train/prepared_run.hpp>
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

    TEST_CASE("weights of the loss: what the choice does not use is refused") {
        Settings settings;
        settings.train.loss_weights = "dpace-prefix";
        settings.train.dpace_alpha = 0.3;
        settings.train.loss_decay_gamma = 4;  // of the held-out loss
        CHECK_NOTHROW(check_settings(settings));
        const model::LossWeights weights = loss_weights_of(settings.train);
        CHECK((weights.kind == model::SlotWeighting::DpacePrefix));
        CHECK(weights.alpha == 0.3);
        settings.train.loss_weights = "decay";
        CHECK((loss_weights_of(settings.train).kind == model::SlotWeighting::Packed));
        CHECK_THROWS_WITH_AS(check_settings(settings),
                             doctest::Contains("train.dpace_alpha is set, but train.loss_weights = "
                                               "\"decay\" does not use it"),
                             Error);
    }
}

}  // namespace dflash::train
