// SPDX-License-Identifier: Apache-2.0
#include <dflash/core/check.hpp>
#include <dflash/target/decode_cache.hpp>

namespace dflash::target {

DecodeCache::DecodeCache(std::int64_t slots, std::int64_t capacity)
    : lengths_(narrow<std::size_t>(slots)), capacity_(capacity) {
    DFLASH_CHECK(slots >= 1 && capacity >= 1, "{} slots of {} tokens", slots, capacity);
}

std::int64_t DecodeCache::checked(std::int64_t slot) const {
    DFLASH_CHECK(slot >= 0 && slot < slots(), "slot {} of {}", slot, slots());
    return slot;
}

std::int64_t DecodeCache::length(std::int64_t slot) const {
    return lengths_[static_cast<std::size_t>(checked(slot))];
}

void DecodeCache::truncate(std::int64_t slot, std::int64_t length) {
    std::int64_t& held = lengths_[static_cast<std::size_t>(checked(slot))];
    DFLASH_CHECK(
        length >= 0 && length <= held, "slot {} of {} tokens cut to {}", slot, held, length);
    held = length;
}

void DecodeCache::note_appended(std::int64_t slot, std::int64_t count) {
    std::int64_t& held = lengths_[static_cast<std::size_t>(checked(slot))];
    DFLASH_CHECK(count >= 0 && held + count <= capacity_,
                 "slot {} holds {} of {} tokens, {} more",
                 slot,
                 held,
                 capacity_,
                 count);
    held += count;
}

}  // namespace dflash::target
