// SPDX-License-Identifier: Apache-2.0
#include <dflash/core/check.hpp>
#include <dflash/core/random.hpp>
#include <dflash/data/mixture.hpp>

#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <fmt/ranges.h>

namespace dflash::data {

namespace {

struct Share {
    std::int64_t whole = 0;  // times that every sample is taken
    std::int64_t part = 0;   // samples that are taken once more
};

Share share_of(double weight, std::int64_t num_samples) {
    const double whole = std::floor(weight);
    return {.whole = static_cast<std::int64_t>(whole),
            .part = std::llround((weight - whole) * static_cast<double>(num_samples))};
}

}  // namespace

Mixture::Mixture(std::vector<std::int64_t> first_rows, std::vector<double> weights)
    : first_rows_(std::move(first_rows)), weights_(std::move(weights)) {
    DFLASH_CHECK(first_rows_.size() == weights_.size(),
                 "{} files, {} weights",
                 first_rows_.size(),
                 weights_.size());
}

bool Mixture::is_plain() const {
    return std::all_of(weights_.begin(), weights_.end(), [](double w) { return w == 1; });
}

std::span<const SampleId> Mixture::of_file(std::span<const SampleId> ids, std::size_t file) const {
    const auto begin = std::lower_bound(ids.begin(), ids.end(), first_rows_[file]);
    const auto end = file + 1 < first_rows_.size()
                         ? std::lower_bound(begin, ids.end(), first_rows_[file + 1])
                         : ids.end();
    return {begin, end};
}

std::int64_t Mixture::num_samples(std::span<const SampleId> ids) const {
    if (is_plain()) {
        return std::ssize(ids);
    }
    std::int64_t sum = 0;
    for (std::size_t file = 0; file < weights_.size(); ++file) {
        const std::int64_t n = std::ssize(of_file(ids, file));
        const Share share = share_of(weights_[file], n);
        sum += share.whole * n + share.part;
    }
    return sum;
}

std::vector<SampleId> Mixture::draw(std::span<const SampleId> ids,
                                    std::uint64_t seed,
                                    std::int64_t epoch) const {
    if (is_plain()) {
        return {ids.begin(), ids.end()};
    }
    std::vector<SampleId> drawn;
    for (std::size_t file = 0; file < weights_.size(); ++file) {
        const std::span<const SampleId> own = of_file(ids, file);
        const Share share = share_of(weights_[file], std::ssize(own));
        for (std::int64_t i = 0; i < share.whole; ++i) {
            drawn.insert(drawn.end(), own.begin(), own.end());
        }
        RandomStream random(seed, Purpose::Mixture, narrow<std::uint32_t>(epoch), file);
        for (const std::uint64_t place :
             random.sample_sorted(own.size(), static_cast<std::uint64_t>(share.part))) {
            drawn.push_back(own[place]);
        }
    }
    return drawn;
}

std::string Mixture::to_text() const {
    return is_plain() ? "" : fmt::format("{}", fmt::join(weights_, ", "));
}

}  // namespace dflash::data
