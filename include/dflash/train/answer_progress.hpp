// SPDX-License-Identifier: Apache-2.0
// How far answering is: for lines that stay, and for whatever shows it live.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace dflash::train {

class AnswerProgress {
  public:
    /// `done_before` of the `wanted` answers were there when it began, which is now. Lines are
    /// logged `line_every_s` apart.
    AnswerProgress(double line_every_s, std::int64_t wanted, std::int64_t done_before);

    /// So many are done now, of those done before too; `tokens` were made since the beginning.
    void tell(std::int64_t done, std::int64_t tokens);

    /// "1,200 of 16,384 (7.3 %), 7,120 tokens/s, 41 min left".
    const std::string& text() const { return text_; }

    double seconds() const;

  private:
    using Clock = std::chrono::steady_clock;

    double line_every_s_;
    std::int64_t wanted_;
    std::int64_t done_before_;
    Clock::time_point begin_ = Clock::now();
    double told_s_ = 0;
    std::string text_;
};

}  // namespace dflash::train
