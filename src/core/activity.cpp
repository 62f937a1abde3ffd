// SPDX-License-Identifier: Apache-2.0
#include <dflash/core/activity.hpp>

#include <fmt/format.h>

namespace dflash {
namespace {

std::atomic<std::uint64_t> progress = 0;
std::atomic<Activity::Observer> the_observer = nullptr;

std::int64_t now_ns() {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(
               std::chrono::steady_clock::now().time_since_epoch())
        .count();
}

}  // namespace

void note_progress() noexcept {
    progress.fetch_add(1, std::memory_order_relaxed);
}

std::uint64_t progress_noted() noexcept {
    return progress.load(std::memory_order_relaxed);
}

std::string Activity::Now::text() const {
    if (idle()) {
        return "nothing";
    }
    return number == kNoNumber ? std::string(what) : fmt::format("{} {}", what, number);
}

Activity::Scope::Scope(Activity& activity) noexcept
    : activity_(activity),
      outer_what_(activity.copies_[0].what.load(std::memory_order_relaxed)),
      outer_number_(activity.copies_[0].number.load(std::memory_order_relaxed)),
      outer_kind_(activity.copies_[0].kind.load(std::memory_order_relaxed)),
      outer_since_(activity.copies_[0].since_ns.load(std::memory_order_relaxed)) {}

// Delegates, so that the destructor runs if the observer throws.
Activity::Scope::Scope(Activity& activity, const char* what, std::int64_t number, Kind kind)
    : Scope(activity) {
    activity.write(what, number, kind, now_ns());
    if (const Observer observer = the_observer.load(std::memory_order_relaxed)) {
        observer(activity, what, number);
    }
}

Activity::Scope::~Scope() {
    activity_.write(outer_what_, outer_number_, outer_kind_, outer_since_);
}

// With acquire and release on every field no fence is needed: a reader that saw a new field sees
// the version stored before it, too.
void Activity::write(const char* what,
                     std::int64_t number,
                     Kind kind,
                     std::int64_t since) noexcept {
    std::uint32_t version = version_.load(std::memory_order_relaxed);
    for (Fields& copy : copies_) {
        version_.store(++version, std::memory_order_release);
        copy.what.store(what, std::memory_order_release);
        copy.number.store(number, std::memory_order_release);
        copy.kind.store(kind, std::memory_order_release);
        copy.since_ns.store(since, std::memory_order_release);
    }
}

void Activity::set(const char* what, std::int64_t number, Kind kind) noexcept {
    write(what, number, kind, now_ns());
}

Activity::Now Activity::now() const noexcept {
    // Only a writer that writes all the time makes one more attempt necessary.
    constexpr int kAttempts = 100'000;
    Now now;
    std::int64_t since = 0;
    for (int i = 0; i < kAttempts; ++i) {
        const std::uint32_t before = version_.load(std::memory_order_acquire);
        const Fields& copy = copies_[before % 2];
        now.what = copy.what.load(std::memory_order_acquire);
        now.number = copy.number.load(std::memory_order_acquire);
        now.kind = copy.kind.load(std::memory_order_acquire);
        since = copy.since_ns.load(std::memory_order_acquire);
        if (version_.load(std::memory_order_acquire) == before) {
            break;
        }
    }
    now.seconds = now.idle() ? 0 : 1e-9 * static_cast<double>(now_ns() - since);
    return now;
}

void Activity::set_observer(Observer observer) noexcept {
    the_observer.store(observer);
}

}  // namespace dflash
