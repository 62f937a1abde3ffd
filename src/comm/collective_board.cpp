// SPDX-License-Identifier: Apache-2.0
#include <dflash/comm/collective_board.hpp>

#include <algorithm>
#include <fmt/format.h>
#include <fmt/ranges.h>

namespace dflash::comm {
namespace {

std::string ranks_text(const std::vector<int>& ranks) {
    return fmt::format("{} {}", ranks.size() == 1 ? "rank" : "ranks", fmt::join(ranks, ", "));
}

}  // namespace

std::string OpenCollective::text() const {
    const bool one = arrived.size() == 1;
    if (missing.empty()) {
        return fmt::format("{} {}: all have called it, {} {} not done with it",
                           name,
                           number,
                           ranks_text(unfinished),
                           unfinished.size() == 1 ? "is" : "are");
    }
    return fmt::format("{} {}: {} {} for {}",
                       name,
                       number,
                       ranks_text(arrived),
                       one ? "waits" : "wait",
                       ranks_text(missing));
}

CollectiveBoard::CollectiveBoard(int num_ranks) {
    for (int i = 0; i < num_ranks; ++i) {
        ranks_.emplace_back();
    }
}

void CollectiveBoard::enter(int rank, const char* name) noexcept {
    // Only the rank's own thread counts its calls; a stream may count what is done.
    Rank& own = ranks_[static_cast<std::size_t>(rank)];
    const std::int64_t number = own.started.load(std::memory_order_relaxed) + 1;
    Call& call = own.calls[static_cast<std::size_t>(number) % kRemembered];
    call.name.store(name, std::memory_order_relaxed);
    call.since_ns.store(std::chrono::nanoseconds(Clock::now().time_since_epoch()).count(),
                        std::memory_order_relaxed);
    own.started.store(number, std::memory_order_release);
}

void CollectiveBoard::leave(int rank) noexcept {
    ranks_[static_cast<std::size_t>(rank)].done.fetch_add(1, std::memory_order_release);
}

std::optional<OpenCollective> CollectiveBoard::open() const {
    if (ranks_.empty()) {
        return std::nullopt;
    }
    OpenCollective open;
    open.number = std::min_element(ranks_.begin(),
                                   ranks_.end(),
                                   [](const auto& a, const auto& b) { return a.done < b.done; })
                      ->done +
                  1;
    // Ranks go on while they are read: what is done is read first, so that nobody is missing who is
    // ahead.
    std::int64_t first_ns = 0;
    for (std::size_t i = 0; i < ranks_.size(); ++i) {
        const Rank& rank = ranks_[i];
        if (rank.done.load(std::memory_order_acquire) < open.number) {
            open.unfinished.push_back(static_cast<int>(i));
        }
        if (rank.started.load(std::memory_order_acquire) < open.number) {
            open.missing.push_back(static_cast<int>(i));
            continue;
        }
        const Call& call = rank.calls[static_cast<std::size_t>(open.number) % kRemembered];
        const std::int64_t since_ns = call.since_ns.load(std::memory_order_relaxed);
        if (open.arrived.empty() || since_ns < first_ns) {
            first_ns = since_ns;
            open.name = call.name.load(std::memory_order_relaxed);
        }
        open.arrived.push_back(static_cast<int>(i));
    }
    if (open.arrived.empty() || open.unfinished.empty()) {
        return std::nullopt;  // none, or it ended while we looked
    }
    const std::int64_t now_ns = std::chrono::nanoseconds(Clock::now().time_since_epoch()).count();
    open.seconds = 1e-9 * static_cast<double>(now_ns - first_ns);
    return open;
}

}  // namespace dflash::comm
