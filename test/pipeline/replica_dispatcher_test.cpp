// SPDX-License-Identifier: Apache-2.0
#include "fake_stages.hpp"

#include <dflash/core/error.hpp>
#include <dflash/pipeline/replica_dispatcher.hpp>

#include <algorithm>
#include <chrono>
#include <doctest/doctest.h>
#include <map>
#include <memory>
#include <stdexcept>
#include <utility>

namespace dflash::pipeline {
namespace {

RowPtr make_row(std::int64_t index) {
    data::PackedRow row;
    row.index = index;
    row.documents.push_back({.id = index});
    return std::make_shared<const data::PackedRow>(std::move(row));
}

/// Keeps what it is given until the test finishes it.
struct ManualReplicas {
    std::vector<std::pair<int, std::int64_t>> started;  // replica, row
    std::map<std::int64_t, std::function<void()>> running;

    std::vector<Replica> make(int count, int capacity) {
        std::vector<Replica> replicas;
        replicas.reserve(static_cast<std::size_t>(count));
        for (int i = 0; i < count; ++i) {
            replicas.push_back({.start =
                                    [this, i](const RowPtr& row, int, std::function<void()> done) {
                                        started.emplace_back(i, row->index);
                                        running[row->index] = std::move(done);
                                    },
                                .capacity = capacity});
        }
        return replicas;
    }

    void finish(std::int64_t row) {
        auto node = running.extract(row);
        REQUIRE_FALSE(node.empty());
        node.mapped()();
    }
};

using Started = std::vector<std::pair<int, std::int64_t>>;

}  // namespace

TEST_SUITE("pipeline.replica_dispatcher") {
    TEST_CASE("a row goes to the first free replica; while none is free, rows queue in order") {
        FirstError first_error;
        ManualReplicas replicas;
        ReplicaDispatcher dispatcher(replicas.make(2, 1), first_error);
        std::vector<std::int64_t> finished;
        for (std::int64_t i = 0; i < 5; ++i) {
            dispatcher.start(make_row(i), 0, [&finished, i] { finished.push_back(i); });
        }
        CHECK(replicas.started == Started{{0, 0}, {1, 1}});
        CHECK(dispatcher.num_queued() == 3);
        replicas.finish(1);
        CHECK(replicas.started.back() == std::pair<int, std::int64_t>{1, 2});
        replicas.finish(2);
        CHECK(replicas.started.back() == std::pair<int, std::int64_t>{1, 3});
        replicas.finish(0);
        CHECK(replicas.started.back() == std::pair<int, std::int64_t>{0, 4});
        CHECK(dispatcher.num_queued() == 0);
        CHECK(dispatcher.stats()[0].rows_in_flight == 1);
        replicas.finish(3);
        CHECK(dispatcher.stats()[1].rows_in_flight == 0);
        CHECK(dispatcher.stats()[1].rows_done == 3);
        replicas.finish(4);
        CHECK(finished == std::vector<std::int64_t>{1, 2, 0, 3, 4});
    }

    TEST_CASE("an idle replica comes before one that would prefetch") {
        FirstError first_error;
        ManualReplicas replicas;
        ReplicaDispatcher dispatcher(replicas.make(3, 2), first_error);
        for (std::int64_t i = 0; i < 8; ++i) {
            dispatcher.start(make_row(i), 0, [] {});
        }
        CHECK(replicas.started == Started{{0, 0}, {1, 1}, {2, 2}, {0, 3}, {1, 4}, {2, 5}});
        CHECK(dispatcher.num_queued() == 2);
        CHECK(dispatcher.num_replicas() == 3);
        replicas.finish(2);
        replicas.finish(5);
        CHECK(replicas.started.back() == std::pair<int, std::int64_t>{2, 7});
        replicas.finish(6);
        replicas.finish(7);
        CHECK(dispatcher.stats()[2].rows_in_flight == 0);
        for (const std::int64_t row : {0, 1, 3, 4}) {
            replicas.finish(row);
        }
    }

    TEST_CASE("idle time runs only while a replica has no row") {
        FirstError first_error;
        ManualReplicas replicas;
        ReplicaDispatcher dispatcher(replicas.make(2, 1), first_error);
        dispatcher.start(make_row(0), 0, [] {});
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        std::vector<ReplicaStats> stats = dispatcher.stats();
        CHECK(stats[0].idle_s < 0.01);
        CHECK(stats[1].idle_s >= 0.02);
        replicas.finish(0);
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        CHECK(dispatcher.stats()[0].idle_s >= 0.02);
    }

    TEST_CASE("a replica that answers inside start() does not nest, however long the queue") {
        FirstError first_error;
        std::function<void()> block;
        int depth = 0;
        int deepest = 0;
        int count = 0;
        Replica replica{.start = [&](const RowPtr& row, int, std::function<void()> done) {
            deepest = std::max(deepest, ++depth);
            ++count;
            if (row->index == 0) {
                block = std::move(done);
            } else {
                done();
            }
            --depth;
        }};
        ReplicaDispatcher dispatcher({replica}, first_error);
        for (std::int64_t i = 0; i < 1000; ++i) {
            dispatcher.start(make_row(i), 0, [] {});
        }
        block();
        CHECK(count == 1000);
        CHECK(deepest == 1);
        CHECK(dispatcher.stats()[0].rows_done == 1000);
    }

    TEST_CASE("rows started and finished by many threads are each done once") {
        FirstError first_error;
        FakeSlots slots(400);
        std::vector<std::unique_ptr<FakeReplica>> fakes;
        std::vector<Replica> replicas;
        for (int i = 0; i < 4; ++i) {
            fakes.push_back(std::make_unique<FakeReplica>(slots, first_error, 0, 1, Fault{}));
            replicas.push_back({.start =
                                    [fake = fakes.back().get()](
                                        const RowPtr& row, int slot, std::function<void()> done) {
                                        fake->start(row, slot, std::move(done));
                                    },
                                .capacity = 1 + i % 2});
        }
        std::vector<std::atomic<int>> done(400);
        {
            ReplicaDispatcher dispatcher(std::move(replicas), first_error);
            std::vector<std::thread> threads;
            threads.reserve(4);
            for (int t = 0; t < 4; ++t) {
                threads.emplace_back([&, t] {
                    for (int i = t; i < 400; i += 4) {
                        dispatcher.start(
                            make_row(i), i, [&done, i] { ++done[static_cast<std::size_t>(i)]; });
                    }
                });
            }
            for (std::thread& thread : threads) {
                thread.join();
            }
            while (std::any_of(done.begin(), done.end(), [](const auto& n) { return n == 0; })) {
                std::this_thread::yield();
            }
        }
        fakes.clear();
        CHECK(std::all_of(done.begin(), done.end(), [](const auto& n) { return n == 1; }));
        CHECK_FALSE(first_error.failed());
    }

    TEST_CASE("after an error no row is started") {
        FirstError first_error;
        ManualReplicas replicas;
        ReplicaDispatcher dispatcher(replicas.make(1, 1), first_error);
        dispatcher.start(make_row(0), 0, [] {});
        dispatcher.start(make_row(1), 0, [] {});
        first_error.store(std::make_exception_ptr(std::runtime_error("elsewhere")));
        replicas.finish(0);
        dispatcher.start(make_row(2), 0, [] {});
        CHECK(replicas.started == Started{{0, 0}});
    }

    TEST_CASE("what a replica throws, and an answer too many, go to the first error") {
        for (const bool throws : {true, false}) {
            FirstError first_error;
            Replica replica{.start = [&](const RowPtr&, int, const std::function<void()>& done) {
                if (throws) {
                    throw std::runtime_error("replica");
                }
                done();
                done();
            }};
            ReplicaDispatcher dispatcher({replica}, first_error);
            CHECK_NOTHROW(dispatcher.start(make_row(0), 0, [] {}));
            REQUIRE(first_error.failed());
            try {
                first_error.rethrow_if_failed();
            } catch (const std::exception& error) {
                CHECK(std::string(error.what()).find(throws ? "replica" : "finished a row twice") !=
                      std::string::npos);
            }
        }
    }

    TEST_CASE("replicas may answer after the dispatcher is gone") {
        FirstError first_error;
        ManualReplicas replicas;
        int finished = 0;
        {
            ReplicaDispatcher dispatcher(replicas.make(1, 1), first_error);
            dispatcher.start(make_row(0), 0, [&finished] { ++finished; });
        }
        replicas.finish(0);
        CHECK(finished == 1);
    }

    TEST_CASE("a dispatcher needs replicas with room") {
        FirstError first_error;
        CHECK_THROWS_AS(ReplicaDispatcher({}, first_error), Error);
        ManualReplicas replicas;
        CHECK_THROWS_AS(ReplicaDispatcher(replicas.make(1, 0), first_error), Error);
    }
}

}  // namespace dflash::pipeline
