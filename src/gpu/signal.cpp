// SPDX-License-Identifier: Apache-2.0
#include <dflash/gpu/check.hpp>
#include <dflash/gpu/signal.hpp>

namespace dflash::gpu {

void Signal::record(StreamView stream) {
    if (!stream.is_cuda()) {
        return;
    }
    int ordinal = 0;
    check(cudaGetDevice(&ordinal));
    events_.try_emplace(ordinal).first->second.record(stream);
    last_ordinal_ = ordinal;
}

void Signal::wait(StreamView stream) const {
    const Event* event = last();
    if (event != nullptr && stream.is_cuda()) {
        event->wait(stream);
    }
}

bool Signal::reached() const {
    const Event* event = last();
    return event == nullptr || event->reached();
}

void Signal::synchronize() const {
    if (const Event* event = last()) {
        event->synchronize();
    }
}

const Event* Signal::last() const {
    const auto found = events_.find(last_ordinal_);
    return found == events_.end() ? nullptr : &found->second;
}

}  // namespace dflash::gpu
