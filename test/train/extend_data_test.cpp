// SPDX-License-Identifier: Apache-2.0
// Rows that are added to the data of a run: which are used when, and what stays bit for bit.
#include "tiny_run.hpp"

#include <dflash/core/error.hpp>
#include <dflash/data/data_history.hpp>
#include <dflash/train/checkpoint.hpp>
#include <dflash/train/prepared_run.hpp>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <doctest/doctest.h>
#include <fmt/format.h>
#include <fstream>
#include <map>
#include <set>

namespace dflash::train {
namespace {

/// Rows [first, end), all different; short, since the format's own system message is longer than
/// they are.
std::string rows(int first, int end) {
    std::string text;
    for (int n = first; n < end; ++n) {
        text += fmt::format(R"({{"messages": [{{"role": "system", "content": "Add"}}, )"
                            R"({{"role": "user", "content": "{0} + {1}?"}}, )"
                            R"({{"role": "assistant", "content": "{2}. {3}."}}]}})"
                            "\n",
                            n,
                            n % 7,
                            n + n % 7,
                            std::string(static_cast<std::size_t>(n % 5) + 1, 'a'));
    }
    return text;
}

void write(const std::string& path, const std::string& text) {
    std::ofstream(path, std::ios::binary) << text;
}

constexpr std::int64_t kEpochs = 3;

/// Large steps, so that an epoch of 902 rows has few of them.
TrainRequest request_for(const std::string& output, const std::string& data) {
    TrainRequest request = tiny_request(output, 1);
    Settings& s = request.settings;
    s.run.data = data;
    s.train.max_steps.reset();
    s.train.epochs = kEpochs;
    s.train.rows_per_step = 12;
    s.data.row_tokens = 512;
    s.data.row_anchors = 64;
    s.data.window = 128;
    return request;
}

/// Ids of the documents that a run trained on, in order; by the epoch that they belong to.
struct Uses {
    std::map<std::int64_t, std::map<SampleId, int>> by_epoch;
    std::vector<SampleId> order;
    std::int64_t epoch = 0;

    void watch(TrainRequest& request) {
        request.on_row = [this](const data::PackedRow& row) {
            for (const data::Document& document : row.documents) {
                ++by_epoch[epoch][document.id];
                order.push_back(document.id);
            }
            epoch = row.next.epoch;
        };
    }
};

/// Trains up to `steps` steps, then stops as Ctrl-C does.
void run_until(TrainRequest request, std::int64_t steps, Uses& uses) {
    uses.watch(request);
    request.settings.train.max_steps = steps;
    REQUIRE(run(request) == 0);
}

TrainRequest resume_request(const std::string& folder, const std::string& data) {
    TrainRequest request = request_for(folder, data);
    request.resume_folder = folder;
    return request;
}

std::string state_of(const std::string& folder) {
    return file_bytes(folder + "/latest/state/optimizer.safetensors");
}

Error error_of(const TrainRequest& request) {
    try {
        run(request);
    } catch (const Error& error) {
        return error;
    }
    FAIL("expected an error");
    return {ErrorKind::Internal, {.what = {}, .where = {}, .cause = {}, .hint = {}}};
}

bool contains(const std::string& text, const std::string& part) {
    CAPTURE(text);
    CAPTURE(part);
    const bool found = text.find(part) != std::string::npos;
    CHECK(found);
    return found;
}

}  // namespace

TEST_SUITE("train.extend_data") {
    TEST_CASE("902 rows, stopped in mid-epoch, extended to 1100: every row is used as promised") {
        const TemporaryFolder folder;
        const std::string data = folder.path("rows.jsonl");
        write(data, rows(0, 902));
        const PreparedRun prepared = prepare_run(request_for("", data).settings);
        const std::set<SampleId> held_out(prepared.held_out_ids.begin(),
                                          prepared.held_out_ids.end());
        REQUIRE(held_out.size() == 16);

        Uses whole;  // what an uninterrupted run over the old rows does
        TrainRequest request = request_for(folder.path("whole"), data);
        whole.watch(request);
        REQUIRE(run(request) == 0);
        const std::vector<io::Json> whole_steps = metrics(folder.path("whole"), "step");
        const auto steps_an_epoch = std::ssize(whole_steps) / kEpochs;
        const std::int64_t stop = steps_an_epoch + steps_an_epoch / 2;

        const std::string first = folder.path("first");
        Uses before;
        run_until(request_for(first, data), stop, before);
        REQUIRE(before.epoch == 1);

        write(data, rows(0, 902) + rows(902, 1100));
        const Error refused = error_of(resume_request(first, data));
        CHECK(refused.kind() == ErrorKind::Config);
        contains(refused.what(), "the data grew since the checkpoint");
        contains(refused.what(), "198 new rows");
        contains(refused.parts().hint, "--extend-data");
        contains(refused.parts().hint, "--init");

        std::string expected_state;
        std::vector<double> expected_losses;

        struct Roles {
            int devices;
            std::string targets;
            std::string drafters;
            bool bit_for_bit;  // other numbers of drafters sum in another order
        };

        std::vector<Roles> all = {{3, "0-1", "2", true}, {4, "0", "1-3", false}};
        if (std::getenv("DFLASH_TEST_ALL_ROLES") != nullptr) {
            all.insert(all.end(),
                       {{2, "0", "1", true}, {4, "0-2", "3", true}, {3, "0", "1-2", false}});
        }
        for (const Roles& roles : all) {
            CAPTURE(roles.targets);
            CAPTURE(roles.drafters);
            const std::string copy =
                folder.path(fmt::format("run-{}-and-{}", roles.targets, roles.drafters));
            std::filesystem::copy(first,
                                  copy,
                                  std::filesystem::copy_options::recursive |
                                      std::filesystem::copy_options::copy_symlinks);
            Uses after;
            after.epoch = 1;
            TrainRequest more = resume_request(copy, data);
            more.extend_data = true;
            set_roles(more, roles.devices, roles.targets, roles.drafters);
            after.watch(more);
            REQUIRE(run(more) == 0);

            // The rest of epoch 1 is that of the uninterrupted run.
            const auto rest = std::size_t(std::ranges::count_if(
                after.by_epoch[1], [](const auto& use) { return use.second > 0; }));
            REQUIRE(before.order.size() + rest == 2 * (902 - 16));
            CHECK(std::equal(after.order.begin(),
                             after.order.begin() + std::ptrdiff_t(rest),
                             whole.order.begin() + std::ptrdiff_t(before.order.size())));
            for (SampleId id = 0; id < 1100; ++id) {
                CAPTURE(id);
                const int used = held_out.contains(id) ? 0 : 1;
                CHECK(before.by_epoch[0][id] == (id < 902 ? used : 0));
                CHECK(before.by_epoch[1][id] + after.by_epoch[1][id] == (id < 902 ? used : 0));
                CHECK(after.by_epoch[2][id] == used);
            }
            CHECK(after.by_epoch.size() == 2);

            const std::vector<io::Json> steps = metrics(copy, "step");
            const std::int64_t total = 2 * (902 - 16) + (1100 - 16);
            CHECK(steps.back().require_integer("samples", "") == total);
            CHECK(steps.back().require_number("fraction_done", "") == 1.0);
            CHECK(steps.at(std::size_t(stop)).require_number("fraction_done", "") ==
                  doctest::Approx(steps.at(std::size_t(stop)).require_number("samples", "") /
                                  double(total)));
            REQUIRE(metrics(copy, "resume").size() == 1);
            contains(metrics(copy, "resume").front().dump(), "198 new rows from epoch 3 on");
            contains(file_bytes(copy + "/config.toml"), "198 new rows from epoch 3 on");
            contains(file_bytes(copy + "/environment.json"), "198 new rows from epoch 3 on");
            if (expected_state.empty()) {
                expected_state = state_of(copy);
                expected_losses = losses(copy);
            }
            if (roles.bit_for_bit) {
                CHECK(state_of(copy) == expected_state);
                CHECK(losses(copy) == expected_losses);
            }
            REQUIRE(losses(copy).size() == expected_losses.size());
            for (std::size_t i = 0; i < expected_losses.size(); ++i) {
                CHECK(losses(copy)[i] == doctest::Approx(expected_losses[i]).epsilon(2e-4));
            }
        }
    }

    TEST_CASE("data can be extended twice, also twice within an epoch and by a further file") {
        const TemporaryFolder folder;
        const std::string data = folder.path("rows.jsonl");
        const std::string more_data = folder.path("more.jsonl");
        const std::string run_folder = folder.path("run");
        write(data, rows(0, 300));
        Uses uses;
        TrainRequest request = request_for(run_folder, data);
        request.settings.train.rows_per_step = 4;
        const auto run_to = [&](std::int64_t steps, bool extend) {
            request.extend_data = extend;
            run_until(request, steps, uses);
            request.resume_folder = run_folder;
        };
        run_to(2, false);
        REQUIRE(uses.epoch == 0);
        write(data, rows(0, 330));
        run_to(3, true);
        REQUIRE(uses.epoch == 0);
        write(data, rows(0, 340));
        run_to(4, true);
        while (uses.by_epoch[1].empty()) {  // a row of epoch 1: what follows is too late for it
            run_to(*request.settings.train.max_steps + 1, false);
            request.settings.train.max_steps = std::ssize(losses(run_folder));
        }
        write(more_data, rows(340, 400));
        request.settings.run.data += "," + more_data;
        request.extend_data = true;
        request.settings.train.max_steps.reset();
        uses.watch(request);
        REQUIRE(run(request) == 0);

        for (SampleId id = 0; id < 400; ++id) {
            CAPTURE(id);
            const bool held_out = id < 300 && uses.by_epoch[0][id] == 0;
            CHECK(uses.by_epoch[0][id] == (id < 300 && !held_out ? 1 : 0));
            CHECK(uses.by_epoch[1][id] == (id < 340 && !held_out ? 1 : 0));
            CHECK(uses.by_epoch[2][id] == (held_out ? 0 : 1));
        }
        CHECK(uses.by_epoch.size() == 3);
        CHECK(std::ranges::count(uses.by_epoch[0], 1, [](const auto& use) { return use.second; }) ==
              300 - 16);
        CHECK(metrics(run_folder, "resume").size() == 3);
        // Now it is a run like any other: what it is resumed with must be what it has.
        CHECK(run(request) == 0);
        request.settings.run.data = data;
        contains(error_of(request).what(), "there are 1 data files, 2 before");
    }

    TEST_CASE("held-out rows and the learning rate of what was done do not see the new rows") {
        const TemporaryFolder folder;
        const std::string data = folder.path("rows.jsonl");
        const std::string run_folder = folder.path("run");
        write(data, rows(0, 200));
        Uses uses;
        run_until(request_for(run_folder, data), 1, uses);
        const auto evaluated = [&] { return metrics(run_folder, "eval"); };
        const auto bigram = evaluated().front().find("bigram_accuracy_by_slot")->dump();
        const auto blocks = evaluated().front().require_integer("blocks", "");
        write(data, rows(0, 400));
        TrainRequest more = resume_request(run_folder, data);
        more.extend_data = true;
        run_until(more, 2, uses);
        CHECK(evaluated().back().find("bigram_accuracy_by_slot")->dump() == bigram);
        CHECK(evaluated().back().require_integer("blocks", "") == blocks);
    }

    TEST_CASE("what is no growth at the end is refused with and without --extend-data") {
        const TemporaryFolder folder;
        const std::string data = folder.path("rows.jsonl");
        const std::string run_folder = folder.path("run");
        write(data, rows(0, 200));
        Uses uses;
        run_until(request_for(run_folder, data), 1, uses);

        struct Case {
            std::string text;
            const char* message;
        };

        for (const Case& c : std::vector<Case>{
                 {rows(0, 199), "bytes"},
                 {rows(1, 250), "the first"},
                 {"\n" + rows(0, 250), "the first"},
             }) {
            for (const bool extend : {false, true}) {
                CAPTURE(c.message);
                CAPTURE(extend);
                write(data, c.text);
                TrainRequest request = resume_request(run_folder, data);
                request.extend_data = extend;
                const Error error = error_of(request);
                CHECK(error.kind() == ErrorKind::Config);
                contains(error.what(), "the data are not those of the checkpoint");
                contains(error.what(), c.message);
                contains(error.parts().hint, "--extend-data");
                contains(error.parts().hint, "--init");
            }
        }
        write(data, rows(0, 200));
        TrainRequest nothing_new = resume_request(run_folder, data);
        nothing_new.extend_data = true;
        run_until(nothing_new, 2, uses);
        CHECK(metrics(run_folder, "resume").empty());
    }

    TEST_CASE(
        "rows that no epoch is left for are refused, with the option that makes the run longer") {
        const TemporaryFolder folder;
        const std::string data = folder.path("rows.jsonl");
        const std::string run_folder = folder.path("run");
        write(data, rows(0, 100));
        TrainRequest request = request_for(run_folder, data);
        request.settings.train.epochs = 1;
        REQUIRE(run(request) == 0);
        write(data, rows(0, 150));
        request.resume_folder = run_folder;
        request.extend_data = true;
        const Error error = error_of(request);
        CHECK(error.kind() == ErrorKind::Config);
        contains(error.what(), "50 new rows: they enter at epoch 2, and train.epochs is 1");
        contains(error.parts().hint, "--extend-data --epochs 2");
        request.settings.train.epochs = 2;
        Uses uses;
        uses.watch(request);
        uses.epoch = 1;
        REQUIRE(run(request) == 0);
        CHECK(uses.by_epoch.size() == 1);
        CHECK(uses.by_epoch[1].size() == 150 - 10);
    }
}

}  // namespace dflash::train
