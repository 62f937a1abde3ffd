// SPDX-License-Identifier: Apache-2.0
// What keeps answers as they come: the journal of an output file, or the answers of a run.
#pragma once

#include <dflash/core/scope.hpp>
#include <dflash/io/json.hpp>

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace dflash::train {

/// What must be equal for answers of different starts to stand in one file: (name, value).
using ResponseIdentity = std::vector<std::pair<std::string, std::string>>;

/// The first line of a file of answers, which says what they were made with.
std::string response_header(const ResponseIdentity& identity);

/// Names whose values in such a line are others than now, with the values that they have there.
/// Throws Error{Data} if the line is none.
std::vector<std::pair<std::string, std::string>> response_differences(
    const io::Json& header, const ResponseIdentity& identity, const std::string& where);

/// One task that is done.
struct ResponseEntry {
    std::int64_t task = 0;
    std::string row{};      ///< on one line; empty: dropped
    std::string dropped{};  ///< why there is no row
    std::int64_t tokens = 0;
    bool cut = false;
    bool inexact = false;
    std::vector<io::Json> answers{};  ///< the messages, also of what is dropped
    double repeated = 0;              ///< largest share of repeated 4-grams of an answer
};

/// What the answers so far come to.
struct ResponseSums {
    std::int64_t answered = 0;  ///< tasks with a row
    std::int64_t tokens = 0;    ///< of all answers, the dropped ones included
    std::int64_t cut = 0;       ///< answers that reached the cap
    std::int64_t inexact = 0;   ///< rows with an answer that does not come back as its tokens
    std::map<std::string, std::int64_t> dropped;  ///< tasks without a row, by reason

    void add(const ResponseEntry& entry);

    /// Tasks in all.
    std::int64_t done() const;
};

/// ResponseEntry::dropped of answers with more repeated 4-grams than generate.max_repeated.
inline constexpr const char* kRepeated = "repeated";

/// One thread at a time.
class ResponseKeeper : NonCopyable {
  public:
    virtual ~ResponseKeeper() = default;

    virtual bool done(std::int64_t task) const = 0;

    /// Adds a task that was not done; survives the end of the process. Throws Error{Storage}.
    virtual void add(const ResponseEntry& entry) = 0;

    virtual const ResponseSums& sums() const = 0;

  protected:
    ResponseKeeper() = default;
};

}  // namespace dflash::train
