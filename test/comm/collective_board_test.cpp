// SPDX-License-Identifier: Apache-2.0
#include <dflash/comm/collective_board.hpp>
#include <dflash/comm/in_process_group.hpp>

#include <chrono>
#include <doctest/doctest.h>
#include <stdexcept>
#include <thread>
#include <vector>

namespace dflash::comm {
namespace {

using namespace std::chrono_literals;

}  // namespace

TEST_SUITE("comm.collective_board") {
    TEST_CASE("the oldest collective that is not done tells who has come and who is missing") {
        CollectiveBoard board(3);
        CHECK_FALSE(board.open());
        board.enter(0, "all_reduce");
        board.enter(2, "all_reduce");
        REQUIRE(board.open());
        CHECK(board.open()->text() == "all_reduce 1: ranks 0, 2 wait for rank 1");
        board.enter(1, "all_reduce");
        CHECK(board.open()->text() ==
              "all_reduce 1: all have called it, ranks 0, 1, 2 are not done with it");
        // On streams a rank may call the next one before the first is done.
        board.enter(0, "broadcast");
        board.leave(0);
        board.leave(2);
        CHECK(board.open()->text() ==
              "all_reduce 1: all have called it, rank 1 is not done with it");
        board.leave(1);
        CHECK(board.open()->text() == "broadcast 2: rank 0 waits for ranks 1, 2");
        board.enter(1, "broadcast");
        board.enter(2, "broadcast");
        for (int rank = 0; rank < 3; ++rank) {
            board.leave(rank);
        }
        CHECK_FALSE(board.open());
    }

    TEST_CASE("a group that waits for a rank says so, and is done afterwards") {
        FirstError first_error;
        InProcessGroup group(3, first_error);
        std::vector<std::vector<float>> values(3, std::vector<float>(1000, 1.0F));
        const auto reduce = [&](int rank) {
            HostBuffer buffer(values[static_cast<std::size_t>(rank)]);
            group.all_reduce(rank, buffer);
        };
        std::thread first(reduce, 0);
        std::thread third(reduce, 2);
        const auto until = std::chrono::steady_clock::now() + 10s;
        while ((!group.board()->open() || group.board()->open()->arrived.size() < 2) &&
               std::chrono::steady_clock::now() < until) {
            std::this_thread::sleep_for(1ms);
        }
        REQUIRE(group.board()->open());
        CHECK(group.board()->open()->text() == "all_reduce 1: ranks 0, 2 wait for rank 1");
        reduce(1);
        first.join();
        third.join();
        CHECK_FALSE(group.board()->open());
        CHECK(values[1][999] == 3);
    }

    TEST_CASE("a rank that leaves a collective by an error is not in it any more") {
        FirstError first_error;
        InProcessGroup group(2, first_error);
        std::thread waiting([&] { CHECK_THROWS(group.barrier(0)); });
        while (!group.board()->open()) {
            std::this_thread::sleep_for(1ms);
        }
        first_error.store(std::make_exception_ptr(std::runtime_error("elsewhere")));
        waiting.join();
        CHECK(group.board()->done(0) == 1);
    }
}

}  // namespace dflash::comm
