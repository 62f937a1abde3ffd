// SPDX-License-Identifier: Apache-2.0
// What the parts of a run do at the moment, and whether anything gets done at all: written by
// whoever does it at the price of a few stores, read by others at any time without a lock, so that
// a reader learns the truth even when everything hangs.
#pragma once

#include <dflash/core/scope.hpp>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>
#include <utility>

namespace dflash {

/// Notes that something was finished that only gets finished when the run moves: a task, a sample,
/// a piece of a file. From any thread.
void note_progress() noexcept;

/// How often that happened in this process.
std::uint64_t progress_noted() noexcept;

/// The activity of one thread, or of one node of the flow graph. One thread at a time begins and
/// ends something; now() may be called from any thread.
class Activity : NonCopyable {
  public:
    enum class Kind {
        Works,  ///< nobody else can be blamed for the time that it takes
        Waits,  ///< for another part of the run
    };

    static constexpr std::int64_t kNoNumber = -1;

    /// What is under way.
    struct Now {
        const char* what = nullptr;       ///< null: nothing
        std::int64_t number = kNoNumber;  ///< of the row, sample, step ...
        Kind kind = Kind::Works;
        double seconds = 0;  ///< since it began

        bool idle() const { return what == nullptr; }

        /// "capture row 17"; "nothing".
        std::string text() const;
    };

    /// `who`: "cuda0", "encode".
    explicit Activity(std::string who) : who_(std::move(who)) {}

    const std::string& who() const noexcept { return who_; }

    /// Begins something, and ends it when it goes; what was under way before goes on then, since
    /// its own beginning. `what` must live as long as the program: a literal. The constructor
    /// throws only what the observer throws.
    class Scope : NonCopyable {
      public:
        Scope(Activity& activity,
              const char* what,
              std::int64_t number = kNoNumber,
              Kind kind = Kind::Works);
        ~Scope();

      private:
        explicit Scope(Activity& activity) noexcept;

        Activity& activity_;
        const char* outer_what_;
        std::int64_t outer_number_;
        Kind outer_kind_;
        std::int64_t outer_since_;
    };

    /// Replaces what is under way, for what does not end where it began, such as the stations of a
    /// row; null: nothing any more. Not observed.
    void set(const char* what, std::int64_t number = kNoNumber, Kind kind = Kind::Works) noexcept;

    Now now() const noexcept;

    /// Called in the thread that begins something, after that can be seen; may throw, or never
    /// return. For tests: whatever can be told can be made to fail or to hang. Null: nobody
    /// observes. Set it before threads begin.
    using Observer = void (*)(const Activity& activity, const char* what, std::int64_t number);
    static void set_observer(Observer observer) noexcept;

  private:
    void write(const char* what, std::int64_t number, Kind kind, std::int64_t since) noexcept;

    struct Fields {
        std::atomic<const char*> what = nullptr;
        std::atomic<std::int64_t> number = kNoNumber;
        std::atomic<Kind> kind = Kind::Works;
        std::atomic<std::int64_t> since_ns = 0;  // of the steady clock
    };

    const std::string who_;
    // A sequence lock with two copies: while the version is even the first one is whole, while it
    // is odd the second. So a writer that is stopped half-way leaves a whole one, too.
    std::atomic<std::uint32_t> version_ = 0;
    Fields copies_[2];
};

}  // namespace dflash
