// SPDX-License-Identifier: Apache-2.0
#include <dflash/core/check.hpp>
#include <dflash/model/draft_cache.hpp>

#include <c10/core/GradMode.h>

namespace dflash::model {

DraftCache::DraftCache(const DraftConfig& config,
                       std::int64_t slots,
                       std::int64_t capacity,
                       at::TensorOptions options)
    : capacity_(capacity),
      rows_of_slot_(capacity + config.block_size),
      lengths_(narrow<std::size_t>(slots), 0) {
    DFLASH_CHECK(slots > 0 && capacity > 0, "{} slots of {} tokens", slots, capacity);
    const c10::NoGradGuard no_grad;
    for (std::int64_t i = 0; i < config.num_layers(); ++i) {
        for (std::vector<at::Tensor>* tensors : {&keys_, &values_}) {
            tensors->push_back(
                at::empty({num_rows(), config.num_kv_heads, config.head_dim}, options));
        }
    }
}

std::int64_t DraftCache::length(std::int64_t slot) const {
    DFLASH_CHECK(slot >= 0 && slot < slots(), "slot {} of {}", slot, slots());
    return lengths_[static_cast<std::size_t>(slot)];
}

void DraftCache::truncate(std::int64_t slot, std::int64_t length) {
    DFLASH_CHECK(length >= 0 && length <= this->length(slot),
                 "slot {} of {} tokens cut to {}",
                 slot,
                 this->length(slot),
                 length);
    lengths_[static_cast<std::size_t>(slot)] = length;
}

void DraftCache::note_appended(std::int64_t slot, std::int64_t count) {
    const std::int64_t held = length(slot);
    DFLASH_CHECK(count >= 0 && held + count <= capacity_,
                 "{} tokens after {} in slots of {}",
                 count,
                 held,
                 capacity_);
    lengths_[static_cast<std::size_t>(slot)] = held + count;
}

Bytes DraftCache::bytes() const {
    return static_cast<Bytes>(keys_.size() * 2) * static_cast<Bytes>(keys_.front().nbytes());
}

Bytes DraftCache::memory_need(const DraftConfig& config,
                              std::int64_t slots,
                              std::int64_t capacity,
                              Bytes element_size) {
    const std::int64_t rows = slots * (capacity + config.block_size) + 1;
    return 2 * config.num_layers() * rows * config.num_kv_heads * config.head_dim * element_size;
}

}  // namespace dflash::model
