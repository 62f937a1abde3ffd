// SPDX-License-Identifier: Apache-2.0
#include <dflash/data/absent_format.hpp>

#include <utility>

namespace dflash::data {

namespace {

class AbsentFormat final : public ChatFormat {
  public:
    explicit AbsentFormat(Error reason) : reason_(std::move(reason)) {}

    std::string_view name() const override { return "none"; }

    Rendered render(const Conversation& /*conversation*/,
                    const RenderOptions& /*options*/) const override {
        throw reason_;
    }

    std::vector<std::string> used_tokens() const override { return {}; }

    std::vector<std::string> turn_tokens() const override { return {}; }

    std::optional<bool> served_thinking(const Conversation& /*conversation*/) const override {
        return std::nullopt;
    }

    TextMarks text_marks() const override { throw reason_; }

  private:
    Error reason_;
};

}  // namespace

std::unique_ptr<ChatFormat> make_absent_format(Error reason) {
    return std::make_unique<AbsentFormat>(std::move(reason));
}

}  // namespace dflash::data
