// SPDX-License-Identifier: Apache-2.0
// Which ranks have come to the collective under way, and which are missing, for reports while a
// group works or hangs.
#pragma once

#include <dflash/core/scope.hpp>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

namespace dflash::comm {

/// The oldest collective that is not done on all ranks.
struct OpenCollective {
    std::string name;             ///< "all_reduce"
    std::int64_t number = 0;      ///< 1: the group's first
    std::vector<int> arrived;     ///< ranks that have called it
    std::vector<int> missing;     ///< ranks that have not
    std::vector<int> unfinished;  ///< ranks on which it is not done
    double seconds = 0;           ///< since the first of them called it

    /// "all_reduce 12: ranks 0, 2 wait for rank 1".
    std::string text() const;
};

/// Counts the collectives of every rank, which all call the same ones in the same order. Lives on
/// when its group has gone. From any thread, without a lock.
class CollectiveBoard : NonCopyable {
  public:
    explicit CollectiveBoard(int num_ranks);

    /// A rank calls a collective; `name` is a literal.
    void enter(int rank, const char* name) noexcept;

    /// The rank's oldest collective is done.
    void leave(int rank) noexcept;

    /// Collectives that a rank has called, and those that are done on it.
    std::int64_t started(int rank) const noexcept { return at(rank).started; }

    std::int64_t done(int rank) const noexcept { return at(rank).done; }

    std::optional<OpenCollective> open() const;

  private:
    using Clock = std::chrono::steady_clock;

    /// What a rank calls is known by its number until it has called so many more; enough for what
    /// may be queued on a stream.
    static constexpr std::size_t kRemembered = 16;

    struct Call {
        std::atomic<const char*> name = "";
        std::atomic<std::int64_t> since_ns = 0;
    };

    struct Rank {
        std::atomic<std::int64_t> started = 0;
        std::atomic<std::int64_t> done = 0;
        Call calls[kRemembered];  // of collective n: n mod kRemembered
    };

    const Rank& at(int rank) const { return ranks_[static_cast<std::size_t>(rank)]; }

    std::deque<Rank> ranks_;
};

/// Counts one collective of a rank from its call to the end of the scope.
class CollectiveScope : NonCopyable {
  public:
    CollectiveScope(CollectiveBoard& board, int rank, const char* name)
        : board_(board), rank_(rank) {
        board.enter(rank, name);
    }

    ~CollectiveScope() { board_.leave(rank_); }

  private:
    CollectiveBoard& board_;
    int rank_;
};

}  // namespace dflash::comm
