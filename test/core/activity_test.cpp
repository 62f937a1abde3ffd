// SPDX-License-Identifier: Apache-2.0
#include <dflash/core/activity.hpp>

#include <atomic>
#include <chrono>
#include <doctest/doctest.h>
#include <stdexcept>
#include <string>
#include <thread>

namespace dflash {
namespace {

using namespace std::chrono_literals;

}  // namespace

TEST_SUITE("core.activity") {
    TEST_CASE("what is begun can be seen until its scope ends, then what was before") {
        Activity activity("somebody");
        CHECK(activity.now().idle());
        CHECK(activity.now().text() == "nothing");
        {
            const Activity::Scope outer(activity, "outer", 3);
            std::this_thread::sleep_for(20ms);
            {
                const Activity::Scope inner(
                    activity, "inner", Activity::kNoNumber, Activity::Kind::Waits);
                CHECK(activity.now().text() == "inner");
                CHECK(activity.now().kind == Activity::Kind::Waits);
            }
            CHECK(activity.now().text() == "outer 3");
            CHECK(activity.now().kind == Activity::Kind::Works);
            CHECK(activity.now().seconds >= 0.02);  // since its own beginning
        }
        CHECK(activity.now().idle());
        CHECK(activity.now().seconds == 0);
    }

    TEST_CASE("what an observer throws leaves nothing begun") {
        Activity activity("somebody");
        Activity::set_observer([](const Activity& who, const char* what, std::int64_t number) {
            CHECK(who.who() == "somebody");
            CHECK(who.now().text() == "something 7");  // it can be seen already
            if (std::string(what) == "something" && number == 7) {
                throw std::runtime_error("observed");
            }
        });
        CHECK_THROWS_WITH(Activity::Scope(activity, "something", 7), "observed");
        Activity::set_observer(nullptr);
        CHECK(activity.now().idle());
        CHECK_NOTHROW(Activity::Scope(activity, "something", 7));
    }

    TEST_CASE("a reader sees what belongs together while it changes") {
        Activity activity("somebody");
        std::atomic<bool> stop = false;
        std::thread writer([&] {
            for (std::int64_t i = 0; !stop; ++i) {
                activity.set(i % 2 == 0 ? "even" : "odd", i);
            }
        });
        int seen = 0;
        const auto until = std::chrono::steady_clock::now() + 200ms;
        while (std::chrono::steady_clock::now() < until) {
            const Activity::Now now = activity.now();
            if (!now.idle()) {
                ++seen;
                REQUIRE(std::string(now.what) == (now.number % 2 == 0 ? "even" : "odd"));
            }
        }
        stop = true;
        writer.join();
        CHECK(seen > 100);
    }

    TEST_CASE("progress is counted over all threads") {
        const std::uint64_t before = progress_noted();
        std::thread other([] { note_progress(); });
        note_progress();
        other.join();
        CHECK(progress_noted() == before + 2);
    }
}

}  // namespace dflash
