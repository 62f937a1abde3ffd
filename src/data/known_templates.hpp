// SPDX-License-Identifier: Apache-2.0
// Chat templates told apart by their whole text. Copies with a changed line are common and look
// like the original in all their parts (Qwen3's without its reasoning, with another system message,
// with thinking turned off), so parts of a text decide nothing; they only make a better message.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace dflash::data {

/// 16 hexadecimal digits of XXH64 of the text, without a line feed at its end (Jinja drops one).
std::string template_fingerprint(std::string_view chat_template);

struct KnownTemplate {
    std::string_view fingerprint;
    std::string_view family;  ///< name of the format that renders as it does; empty: none does
    std::string_view of;      ///< whose template it is, for messages
};

/// The published template with that fingerprint.
std::optional<KnownTemplate> find_known_template(std::string_view fingerprint);

/// The family whose marks an unknown template writes; empty if they are nobody's.
std::string_view resembled_family(std::string_view chat_template);

}  // namespace dflash::data
