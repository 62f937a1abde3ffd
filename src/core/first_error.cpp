// SPDX-License-Identifier: Apache-2.0
#include <dflash/core/error.hpp>
#include <dflash/core/first_error.hpp>

namespace dflash {

bool FirstError::store(std::exception_ptr error) noexcept {
    if (error == nullptr) {
        error = std::make_exception_ptr(Error(
            ErrorKind::Internal,
            {.what = "a failure without an exception", .where = {}, .cause = {}, .hint = {}}));
    }
    {
        const std::lock_guard lock(mutex_);
        if (error_) {
            return false;
        }
        error_ = std::move(error);
        failed_.store(true, std::memory_order_release);
    }
    const std::lock_guard lock(subscribers_mutex_);
    for (const auto& [id, wake] : subscribers_) {
        wake();
    }
    return true;
}

std::exception_ptr FirstError::get() const {
    const std::lock_guard lock(mutex_);
    return error_;
}

void FirstError::rethrow_if_failed() const {
    if (failed()) {
        std::rethrow_exception(get());
    }
}

FirstError::Subscription FirstError::on_error(std::function<void()> wake) {
    const std::lock_guard lock(subscribers_mutex_);
    const std::uint64_t id = next_id_++;
    const auto& subscriber = subscribers_.emplace(id, std::move(wake)).first->second;
    // An error stored just before this point finds the subscriber in the map or is seen here; both
    // may happen, so wake functions must bear being called twice.
    if (failed()) {
        subscriber();
    }
    return Subscription(this, id);
}

FirstError::Subscription::~Subscription() {
    if (owner_ != nullptr) {
        const std::lock_guard lock(owner_->subscribers_mutex_);
        owner_->subscribers_.erase(id_);
    }
}

}  // namespace dflash
