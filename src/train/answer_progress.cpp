// SPDX-License-Identifier: Apache-2.0
#include <dflash/core/log.hpp>
#include <dflash/core/text.hpp>
#include <dflash/train/answer_progress.hpp>

#include <algorithm>
#include <fmt/format.h>

namespace dflash::train {

AnswerProgress::AnswerProgress(double line_every_s, std::int64_t wanted, std::int64_t done_before)
    : line_every_s_(line_every_s), wanted_(wanted), done_before_(done_before) {}

double AnswerProgress::seconds() const {
    return std::chrono::duration<double>(Clock::now() - begin_).count();
}

void AnswerProgress::tell(std::int64_t done, std::int64_t tokens) {
    const double elapsed = seconds();
    text_ = fmt::format(
        "{} of {} ({:.1f} %), {} tokens/s",
        format_count(done),
        format_count(wanted_),
        100.0 * static_cast<double>(done) / static_cast<double>(std::max<std::int64_t>(1, wanted_)),
        format_count(
            static_cast<std::int64_t>(static_cast<double>(tokens) / std::max(elapsed, 1e-3))));
    if (done > done_before_) {
        text_ += fmt::format(", {} left",
                             format_seconds(elapsed * static_cast<double>(wanted_ - done) /
                                            static_cast<double>(done - done_before_)));
    }
    if (elapsed - told_s_ > line_every_s_) {
        told_s_ = elapsed;
        log_info("answers   {}", text_);
    }
}

}  // namespace dflash::train
