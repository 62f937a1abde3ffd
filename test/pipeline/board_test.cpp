// SPDX-License-Identifier: Apache-2.0
#include "board.hpp"

#include "fake_stages.hpp"

#include <dflash/pipeline/pipeline.hpp>

#include <chrono>
#include <doctest/doctest.h>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace dflash::pipeline {
namespace {

using namespace std::chrono_literals;

/// A target that keeps every row until it is told to let go.
class HoldingTarget final : public TargetStage {
  public:
    void start(RowPtr /*row*/, int /*slot*/, std::function<void()> done) override {
        const std::lock_guard lock(mutex_);
        held_.push_back(std::move(done));
    }

    std::size_t num_held() {
        const std::lock_guard lock(mutex_);
        return held_.size();
    }

    void let_go(std::size_t which) {
        std::function<void()> done;
        {
            const std::lock_guard lock(mutex_);
            done = std::exchange(held_.at(which), nullptr);
        }
        done();
    }

  private:
    std::mutex mutex_;
    std::vector<std::function<void()>> held_;
};

template <class Condition>
bool soon(Condition condition) {
    const auto until = std::chrono::steady_clock::now() + 10s;
    while (!condition() && std::chrono::steady_clock::now() < until) {
        std::this_thread::sleep_for(1ms);
    }
    return condition();
}

/// One sample a row.
struct Stages {
    FakeSource source{40, {}};
    FakeEncoder encoder{[](std::int64_t) { return true; }, 0, 1, {}};
    FakePacker packer{4, 1, 1, {}};
    HoldingTarget target;
    FirstError first_error;
};

}  // namespace

TEST_SUITE("pipeline.board") {
    TEST_CASE("a target that keeps its rows is seen with them, and what waits behind") {
        Stages stages;
        Pipeline pipeline({.num_slots = 2, .window = 4, .num_threads = 2},
                          stages.source,
                          stages.encoder,
                          stages.packer,
                          stages.target,
                          stages.first_error);
        const std::shared_ptr<const PipelineBoard> board = pipeline.board();
        CHECK(board->snapshot().slots.size() == 2);
        CHECK(board->snapshot().slots[0].idle());
        pipeline.start();
        REQUIRE(soon([&] { return stages.target.num_held() == 2; }));
        PipelineSnapshot picture = board->snapshot();
        CHECK(picture.rows_given_slots == 2);
        CHECK(picture.rows_at_step == 0);
        CHECK(std::string(picture.slots[0].what) == "in the target");
        CHECK(picture.slots[0].number == 0);
        CHECK(picture.slots[1].number == 1);
        // Packing runs on until the limiter of samples stops it.
        CHECK(soon([&] { return board->snapshot().rows_waiting() > 0; }));

        stages.target.let_go(1);
        CHECK(std::string(board->snapshot().slots[1].what) == "behind earlier rows");
        stages.target.let_go(0);
        CHECK(soon([&] { return board->snapshot().rows_at_step == 2; }));
        CHECK(std::string(board->snapshot().slots[0].what) == "ready for the loop");
        {
            const std::optional<RowLease> row = pipeline.next();
            REQUIRE(row);
            CHECK(std::string(board->snapshot().slots[0].what) == "in the step");
        }
        CHECK(soon([&] { return board->snapshot().rows_returned == 1; }));
        REQUIRE(soon([&] { return stages.target.num_held() == 3; }));
        std::thread late([&] {
            std::this_thread::sleep_for(20ms);
            stages.target.let_go(2);
        });
        pipeline.stop();
        late.join();
        CHECK(soon([&] { return board->snapshot().slots[0].idle(); }));
    }

    TEST_CASE("a stage that hangs is named with its sample, and the last name is free again") {
        Board board(3, 2);
        {
            const Board::EncodeScope first(board, 7);
            const Board::EncodeScope second(board, 8);
            const Board::EncodeScope third(board, 9);  // one more than there are threads
            const PipelineSnapshot picture = board.snapshot();
            REQUIRE(picture.busy_nodes.size() == 2);
            CHECK(picture.busy_nodes[0].first == "encode");
            CHECK(picture.busy_nodes[0].second.text() == "encode sample 7");
            CHECK(picture.busy_nodes[1].second.text() == "encode sample 8");
        }
        CHECK(board.snapshot().busy_nodes.empty());
        const Board::EncodeScope again(board, 10);
        CHECK(board.snapshot().busy_nodes.size() == 1);
    }
}

}  // namespace dflash::pipeline
