// SPDX-License-Identifier: Apache-2.0
// Small tools for ownership.
#pragma once

#include <utility>

namespace dflash {

/// Base of types with one owner.
class NonCopyable {
  public:
    NonCopyable(const NonCopyable&) = delete;
    NonCopyable& operator=(const NonCopyable&) = delete;

  protected:
    NonCopyable() = default;
    ~NonCopyable() = default;
};

/// Runs a function when the scope ends, unless dismissed. The function must not throw.
template <class F>
class ScopeGuard : NonCopyable {
  public:
    explicit ScopeGuard(F action) : action_(std::move(action)) {}

    ~ScopeGuard() {
        if (active_) {
            action_();
        }
    }

    void dismiss() noexcept { active_ = false; }

  private:
    F action_;
    bool active_ = true;
};

}  // namespace dflash
