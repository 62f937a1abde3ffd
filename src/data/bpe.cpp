// SPDX-License-Identifier: Apache-2.0
#include "bpe.hpp"

#include <dflash/core/check.hpp>

#include <algorithm>
#include <bit>
#include <limits>

namespace dflash::data {
namespace {

constexpr std::uint32_t kNone = std::numeric_limits<std::uint32_t>::max();

std::uint64_t pair_key(TokenId left, TokenId right) {
    return (static_cast<std::uint64_t>(static_cast<std::uint32_t>(left)) << 32U) |
           static_cast<std::uint32_t>(right);
}

// Heap order: the top is the lowest rank, then the leftmost.
bool comes_later(const BpeModel::Space::Candidate& a, const BpeModel::Space::Candidate& b) {
    return a.rank != b.rank ? a.rank > b.rank : a.left > b.left;
}

}  // namespace

MergeTable::MergeTable(std::size_t num_merges)
    : entries_(std::bit_ceil(std::max<std::size_t>(2 * num_merges, 2))),
      shift_(64U - static_cast<unsigned>(std::countr_zero(entries_.size()))) {}

std::size_t MergeTable::slot_of(std::uint64_t pair) const {
    // Multiplicative hashing with 2^64 over the golden ratio (Knuth, TAOCP 3, 6.4).
    std::size_t slot = (pair * 0x9E3779B97F4A7C15ULL) >> shift_;
    while (entries_[slot].pair != pair && entries_[slot].pair != kFree) {
        slot = (slot + 1) & (entries_.size() - 1);
    }
    return slot;
}

void MergeTable::set(TokenId left, TokenId right, Merge merge) {
    const std::uint64_t pair = pair_key(left, right);
    entries_[slot_of(pair)] = {pair, merge};
}

const MergeTable::Merge* MergeTable::find(TokenId left, TokenId right) const {
    const Entry& entry = entries_[slot_of(pair_key(left, right))];
    return entry.pair == kFree ? nullptr : &entry.merge;
}

BpeModel::BpeModel(std::vector<std::optional<std::string>> bytes_of,
                   const std::vector<Pair>& merges,
                   bool ignore_merges)
    : bytes_of_(std::move(bytes_of)),
      merges_(merges.size()),
      ignore_merges_(ignore_merges),
      whole_(std::make_unique<std::atomic<Whole>[]>(bytes_of_.size())) {
    byte_ids_.fill(-1);
    ids_.reserve(bytes_of_.size());
    for (std::size_t i = 0; i < bytes_of_.size(); ++i) {
        if (!bytes_of_[i]) {
            continue;
        }
        const std::string& bytes = *bytes_of_[i];
        ids_.emplace(bytes, narrow<TokenId>(i));
        max_bytes_ = std::max(max_bytes_, bytes.size());
        if (bytes.size() == 1) {
            byte_ids_[static_cast<unsigned char>(bytes.front())] = narrow<TokenId>(i);
        }
    }
    for (std::size_t rank = 0; rank < merges.size(); ++rank) {
        const Pair& pair = merges[rank];
        merges_.set(pair.left, pair.right, {narrow<std::uint32_t>(rank), pair.joined});
    }
}

std::optional<TokenId> BpeModel::id_of(std::string_view bytes) const {
    const auto found = ids_.find(bytes);
    return found == ids_.end() ? std::nullopt : std::optional(found->second);
}

int BpeModel::num_missing_bytes() const {
    return static_cast<int>(std::count(byte_ids_.begin(), byte_ids_.end(), -1));
}

// A piece that is a token and merges to it is answered from the vocabulary. Without ignore_merges
// that it does has to be tried once: merges of a lower rank may lead elsewhere.
std::int64_t BpeModel::encode(std::string_view piece,
                              Space& space,
                              std::vector<PieceToken>& tokens) const {
    const auto found = piece.size() <= max_bytes_ ? ids_.find(piece) : ids_.end();
    if (found == ids_.end()) {
        return merge(piece, space, tokens);
    }
    const TokenId id = found->second;
    std::atomic<Whole>& whole = whole_[static_cast<std::size_t>(id)];
    const Whole known = whole.load(std::memory_order_relaxed);
    if (ignore_merges_ || known == Whole::Yes) {
        tokens.push_back({.id = id, .begin = 0, .end = piece.size()});
        return 0;
    }
    const std::size_t before = tokens.size();
    const std::int64_t vanished = merge(piece, space, tokens);
    if (known == Whole::Unknown) {
        const bool is_whole =
            vanished == 0 && tokens.size() == before + 1 && tokens.back().id == id;
        whole.store(is_whole ? Whole::Yes : Whole::No, std::memory_order_relaxed);
    }
    return vanished;
}

// Adds the pair of a symbol and its right neighbour, if it can be merged.
void BpeModel::push(Space& space, std::uint32_t left) const {
    const std::uint32_t right = space.symbols[left].next;
    if (right == kNone) {
        return;
    }
    if (const MergeTable::Merge* found =
            merges_.find(space.symbols[left].id, space.symbols[right].id)) {
        space.heap.push_back({.rank = found->rank, .left = left, .joined = found->joined});
        std::push_heap(space.heap.begin(), space.heap.end(), comes_later);
    }
}

// A linked list of symbols and a heap of the pairs that can be merged: O(n log n) for a piece of n
// bytes. Candidates that a merge beside them made void stay in the heap and are passed over.
std::int64_t BpeModel::merge(std::string_view piece,
                             Space& space,
                             std::vector<PieceToken>& tokens) const {
    std::vector<Space::Symbol>& symbols = space.symbols;
    symbols.clear();
    space.heap.clear();
    DFLASH_CHECK(piece.size() < kNone, "a piece of {} bytes", piece.size());
    for (std::size_t at = 0; at < piece.size(); ++at) {
        const TokenId id = byte_ids_[static_cast<unsigned char>(piece[at])];
        if (id >= 0) {
            const auto place = static_cast<std::uint32_t>(symbols.size());
            symbols.push_back({.id = id,
                               .next = place + 1,
                               .previous = place == 0 ? kNone : place - 1,
                               .begin = at,
                               .end = at + 1});
        }
    }
    if (symbols.empty()) {
        return static_cast<std::int64_t>(piece.size());
    }
    const auto vanished = static_cast<std::int64_t>(piece.size() - symbols.size());
    symbols.back().next = kNone;
    for (std::uint32_t left = 0; left + 1 < symbols.size(); ++left) {
        push(space, left);
    }
    while (!space.heap.empty()) {
        std::pop_heap(space.heap.begin(), space.heap.end(), comes_later);
        const Space::Candidate best = space.heap.back();
        space.heap.pop_back();
        Space::Symbol& left = symbols[best.left];
        if (left.id < 0 || left.next == kNone) {
            continue;
        }
        // The pair that stands there now may be another one than when the candidate was made.
        Space::Symbol& right = symbols[left.next];
        const MergeTable::Merge* now = merges_.find(left.id, right.id);
        if (now == nullptr || now->joined != best.joined) {
            continue;
        }
        // The left symbol becomes both; the right one leaves the list. Two pairs are new.
        left.id = best.joined;
        left.end = right.end;
        left.next = right.next;
        right.id = -1;
        if (left.next != kNone) {
            symbols[left.next].previous = best.left;
        }
        if (left.previous != kNone) {
            push(space, left.previous);
        }
        push(space, best.left);
    }
    for (std::uint32_t at = 0; at != kNone; at = symbols[at].next) {
        tokens.push_back(
            {.id = symbols[at].id, .begin = symbols[at].begin, .end = symbols[at].end});
    }
    return vanished;
}

}  // namespace dflash::data
