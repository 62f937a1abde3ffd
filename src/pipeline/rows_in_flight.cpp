// SPDX-License-Identifier: Apache-2.0
#include "rows_in_flight.hpp"

#include <dflash/core/check.hpp>

namespace dflash::pipeline {

bool RowsInFlight::enter(std::int64_t row_index, RowGateway& gateway) {
    const std::lock_guard lock(mutex_);
    if (closed_) {
        return false;
    }
    leases_.emplace(row_index, WaitLease(gateway));
    return true;
}

void RowsInFlight::leave(const RowPtr& row) noexcept {
    decltype(leases_)::node_type lease;
    {
        const std::lock_guard lock(mutex_);
        if (closed_) {
            return;
        }
        lease = leases_.extract(row->index);
    }
    try {
        DFLASH_CHECK(!lease.empty(), "row {} came back twice from {}", row->index, place_);
        if (on_leave_) {
            on_leave_();
        }
        lease.mapped().put(row);
    } catch (...) {
        first_error_.store(std::current_exception());
    }
}

void RowsInFlight::close() noexcept {
    decltype(leases_) released;
    const std::lock_guard lock(mutex_);
    closed_ = true;
    released.swap(leases_);
}

}  // namespace dflash::pipeline
