// SPDX-License-Identifier: Apache-2.0
#include <dflash/core/check.hpp>
#include <dflash/eval/acceptance.hpp>

namespace dflash::eval {
namespace {

double share(std::int64_t part, std::int64_t whole) {
    return whole == 0 ? 0 : static_cast<double>(part) / static_cast<double>(whole);
}

}  // namespace

void Acceptance::add(const DecodedText& text) {
    ++texts_;
    emitted_ += std::ssize(text.emitted) - 1;
    for (const Round& round : text.rounds) {
        DFLASH_CHECK(round.drafted.size() < kept_.size(),
                     "{} drafts in blocks of {}",
                     round.drafted.size(),
                     kept_.size());
        ++rounds_;
        accepted_ += round.accepted;
        for (std::size_t k = 1; k <= round.drafted.size(); ++k) {
            kept_[k] += static_cast<std::int64_t>(k) <= round.accepted ? 1 : 0;
            // The first round's anchor is the first token that was emitted.
            const auto place =
                static_cast<std::size_t>(round.start - text.rounds.front().start) + k;
            if (place < text.emitted.size()) {
                ++compared_[k];
                right_[k] += round.drafted[k - 1] == text.emitted[place] ? 1 : 0;
            }
        }
    }
}

double Acceptance::tau() const {
    return share(accepted_ + rounds_, rounds_);
}

double Acceptance::tokens_per_call() const {
    return share(emitted_, rounds_);
}

std::vector<double> Acceptance::kept_by_slot() const {
    std::vector<double> shares;
    for (std::size_t k = 1; k < kept_.size(); ++k) {
        shares.push_back(share(kept_[k], rounds_));
    }
    return shares;
}

std::vector<double> Acceptance::right_by_slot() const {
    std::vector<double> shares;
    for (std::size_t k = 1; k < right_.size(); ++k) {
        shares.push_back(share(right_[k], compared_[k]));
    }
    return shares;
}

}  // namespace dflash::eval
