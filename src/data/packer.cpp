// SPDX-License-Identifier: Apache-2.0
#include <dflash/core/check.hpp>
#include <dflash/core/error.hpp>
#include <dflash/core/random.hpp>
#include <dflash/data/packer.hpp>

#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>

namespace dflash::data {

namespace {

/// A sample that gives a document.
struct Item {
    std::size_t place = 0;  // in the window
    std::int64_t tokens = 0;
    std::vector<std::int32_t> anchors{};
};

struct Bin {
    std::int64_t free_tokens = 0;
    std::int64_t free_anchors = 0;
    std::vector<std::size_t> items{};

    bool takes(const Item& item) const {
        return item.tokens <= free_tokens && std::ssize(item.anchors) <= free_anchors;
    }
};

/// Packs along two dimensions, tokens and anchors. Both are put on one scale, on which a row has
/// row_tokens * row_anchors of either. All ties go to the earlier item and to the earlier bin.
/// Each bin begins with its largest item.
class BinPacking {
  public:
    BinPacking(const PackOptions& options, const std::vector<Item>& items)
        : options_(options), items_(items) {
        std::vector<std::size_t> order(items.size());
        std::iota(order.begin(), order.end(), std::size_t{0});
        std::ranges::stable_sort(order, std::ranges::greater{}, [&](std::size_t i) {
            return scaled_sum(items_[i].tokens, std::ssize(items_[i].anchors));
        });
        for (const std::size_t i : order) {
            (empty_bin().takes(items_[i]) ? fitting_ : oversized_).push_back(i);
        }
    }

    /// Best fit is hard to beat where one of the two is scarce. Where both are, it puts the long
    /// documents together and leaves rows of many anchors and few tokens; spreading the documents
    /// evenly over a given number of rows then needs up to a fifth fewer rows.
    std::vector<Bin> pack() const {
        std::vector<Bin> bins = best_fit();
        for (std::size_t count = least_count(); count < bins.size(); ++count) {
            if (std::optional<std::vector<Bin>> spread = spread_over(count)) {
                bins = std::move(*spread);
                break;
            }
        }
        for (const std::size_t i : oversized_) {
            bins.push_back(empty_bin());
            bins.back().items.push_back(i);
        }
        return bins;
    }

  private:
    Bin empty_bin() const {
        return {.free_tokens = options_.row_tokens, .free_anchors = options_.row_anchors};
    }

    std::int64_t scaled_sum(std::int64_t tokens, std::int64_t anchors) const {
        return tokens * options_.row_anchors + anchors * options_.row_tokens;
    }

    std::int64_t scaled_free(const Bin& bin) const {
        return scaled_sum(bin.free_tokens, bin.free_anchors);
    }

    /// Rows without which the fitting items cannot do.
    std::size_t least_count() const {
        std::int64_t tokens = 0;
        std::int64_t anchors = 0;
        for (const std::size_t i : fitting_) {
            tokens += items_[i].tokens;
            anchors += std::ssize(items_[i].anchors);
        }
        const auto rows = [](std::int64_t total, std::int64_t limit) {
            return (total + limit - 1) / limit;
        };
        return static_cast<std::size_t>(
            std::max(rows(tokens, options_.row_tokens), rows(anchors, options_.row_anchors)));
    }

    void put(std::size_t i, Bin& bin) const {
        bin.free_tokens -= items_[i].tokens;
        bin.free_anchors -= std::ssize(items_[i].anchors);
        bin.items.push_back(i);
    }

    /// By falling size, each item into the fullest bin that takes it, or else into a new one.
    std::vector<Bin> best_fit() const {
        std::vector<Bin> bins;
        for (const std::size_t i : fitting_) {
            Bin* best = nullptr;
            for (Bin& bin : bins) {
                if (bin.takes(items_[i]) &&
                    (best == nullptr || scaled_free(bin) < scaled_free(*best))) {
                    best = &bin;
                }
            }
            put(i, best != nullptr ? *best : bins.emplace_back(empty_bin()));
        }
        return bins;
    }

    /// By falling size, each item into the emptiest of `count` bins that takes it; nothing if an
    /// item finds no place.
    std::optional<std::vector<Bin>> spread_over(std::size_t count) const {
        std::vector<Bin> bins(count, empty_bin());
        for (const std::size_t i : fitting_) {
            Bin* best = nullptr;
            for (Bin& bin : bins) {
                if (bin.takes(items_[i]) &&
                    (best == nullptr || scaled_free(bin) > scaled_free(*best))) {
                    best = &bin;
                }
            }
            if (best == nullptr) {
                return std::nullopt;
            }
            put(i, *best);
        }
        return bins;
    }

    const PackOptions& options_;
    const std::vector<Item>& items_;
    std::vector<std::size_t> fitting_;    // by falling size
    std::vector<std::size_t> oversized_;  // larger than a row
};

/// Why a sample gives no document, if it does not; otherwise its anchors.
std::optional<std::string> judge(const PackOptions& options, const Sample& sample, Item& item) {
    if (!sample.dropped.empty()) {
        return sample.dropped;
    }
    if (sample.tokens.empty()) {
        return kNoTokens;
    }
    DFLASH_CHECK(sample.tokens.size() == sample.trainable.size(),
                 "sample {}: {} mask values for {} tokens",
                 sample.ref.id,
                 sample.trainable.size(),
                 sample.tokens.size());
    item.tokens = std::ssize(sample.tokens);
    item.anchors = draw_anchors(sample.trainable,
                                options.block,
                                options.seed,
                                sample.ref.epoch,
                                sample.ref.id,
                                options.held_out);
    if (item.anchors.empty()) {
        return kNoAnchor;
    }
    return std::nullopt;
}

PackedRow build_row(const PackOptions& options,
                    const std::vector<Sample>& samples,
                    const std::vector<Item>& items,
                    std::vector<std::size_t> chosen) {
    std::ranges::sort(chosen, {}, [&](std::size_t i) { return items[i].place; });
    PackedRow row;
    for (const std::size_t i : chosen) {
        const Sample& sample = samples[items[i].place];
        append_document(row, sample.ref.id, sample.tokens);
        append_blocks(row, sample.trainable, items[i].anchors, options.block);
    }
    row.num_samples = std::ssize(chosen);
    return row;
}

}  // namespace

std::vector<SampleId> epoch_order(const std::vector<SampleId>& samples,
                                  std::uint64_t seed,
                                  std::int64_t epoch) {
    RandomStream random(seed, Purpose::Shuffle, narrow<std::uint32_t>(epoch), 0);
    std::vector<SampleId> order;
    order.reserve(samples.size());
    for (const std::int64_t place : random.permutation(std::ssize(samples))) {
        order.push_back(samples[static_cast<std::size_t>(place)]);
    }
    return order;
}

std::vector<PackedRow> Packer::pack_window(const PackOptions& options,
                                           std::vector<Sample> samples) {
    std::vector<Item> items;
    std::vector<DroppedSample> dropped;
    for (std::size_t place = 0; place < samples.size(); ++place) {
        Item item{.place = place};
        if (std::optional<std::string> reason = judge(options, samples[place], item)) {
            dropped.push_back({.id = samples[place].ref.id, .reason = std::move(*reason)});
        } else {
            items.push_back(std::move(item));
        }
    }

    std::vector<Bin> bins = BinPacking(options, items).pack();
    // In the order of the samples that opened them. These are the largest of their rows, and the
    // order of samples is random, so the order of rows says nothing about lengths. (By their first
    // sample, rows of many short documents would come first.)
    std::ranges::sort(bins, {}, [&](const Bin& bin) { return items[bin.items.front()].place; });

    std::vector<PackedRow> rows;
    rows.reserve(bins.size());
    for (Bin& bin : bins) {
        rows.push_back(build_row(options, samples, items, std::move(bin.items)));
    }
    if (rows.empty() && !dropped.empty()) {
        rows.emplace_back();
        rows.front().blocks.block_size = options.block.block_size;
    }
    if (!rows.empty()) {
        rows.front().num_samples += std::ssize(dropped);
        rows.front().dropped = std::move(dropped);
    }
    return rows;
}

Packer::Packer(PackOptions options, Cursor start) : options_(options), cursor_(start) {
    DFLASH_CHECK(options_.window >= 1 && options_.row_tokens >= 1 && options_.row_anchors >= 1,
                 "window {}, row_tokens {}, row_anchors {}",
                 options_.window,
                 options_.row_tokens,
                 options_.row_anchors);
    DFLASH_CHECK(start.epoch >= 0 && start.window >= 0 && start.row_in_window >= 0,
                 "epoch {}, window {}, row {}",
                 start.epoch,
                 start.window,
                 start.row_in_window);
}

std::vector<PackedRow> Packer::push(Sample sample) {
    DFLASH_CHECK(!ended_, "a sample after the end");
    if (sample.ref.end) {
        ended_ = true;
        return flush();
    }
    const std::int64_t expected = cursor_.window * options_.window + std::ssize(window_);
    DFLASH_CHECK(sample.ref.epoch == cursor_.epoch && sample.ref.place == expected,
                 "got the sample at epoch {}, place {}; expected epoch {}, place {}",
                 sample.ref.epoch,
                 sample.ref.place,
                 cursor_.epoch,
                 expected);
    const bool end_of_epoch = sample.ref.last_of_epoch;
    window_.push_back(std::move(sample));
    if (end_of_epoch || std::ssize(window_) == options_.window) {
        return close_window(end_of_epoch);
    }
    return {};
}

std::vector<PackedRow> Packer::close_window(bool end_of_epoch) {
    std::vector<PackedRow> rows = pack_window(options_, std::exchange(window_, {}));
    const std::int64_t num_rows = std::ssize(rows);
    const std::int64_t skipped = cursor_.row_in_window;
    if (skipped >= num_rows) {
        throw Error(
            ErrorKind::Config,
            {.what = fmt::format("the position to resume at does not exist: got row {}, expected "
                                 "less than {}",
                                 skipped,
                                 num_rows),
             .where = fmt::format("window {} of epoch {}", cursor_.window, cursor_.epoch),
             .cause = {},
             .hint = "Resume with the data and the data.* and draft.* settings of the run"});
    }
    const Cursor next_window = end_of_epoch
                                   ? Cursor{.epoch = cursor_.epoch + 1}
                                   : Cursor{.epoch = cursor_.epoch, .window = cursor_.window + 1};
    std::int64_t carried = 0;
    for (std::int64_t r = 0; r < num_rows; ++r) {
        PackedRow& row = rows[static_cast<std::size_t>(r)];
        if (r < skipped) {
            carried += row.num_samples;
            continue;
        }
        row.index = next_index_++;
        row.num_samples += std::exchange(carried, 0);
        row.next = cursor_;
        row.next.row_in_window = r + 1;
    }
    rows.back().next = next_window;
    rows.erase(rows.begin(), rows.begin() + skipped);
    cursor_ = next_window;
    return rows;
}

std::vector<PackedRow> Packer::flush() {
    std::vector<PackedRow> rows = pack_window(options_, std::exchange(window_, {}));
    PackedRow& end = rows.emplace_back();
    end.end = true;
    end.num_samples = 1;
    for (PackedRow& row : rows) {
        row.index = next_index_++;
        row.next = cursor_;
    }
    return rows;
}

}  // namespace dflash::data
