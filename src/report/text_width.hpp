// SPDX-License-Identifier: Apache-2.0
// How many columns of a terminal a text takes. Text is UTF-8; bytes that are not count one column
// each. Escape sequences that set colours (CSI ... m) take none.
#pragma once

#include <string>
#include <string_view>

namespace dflash::report {

/// Columns of the text: two for East Asian wide characters and emoji, none for combining marks.
int display_width(std::string_view text);

/// The longest beginning of the text that takes at most `columns`; of colours set in it nothing is
/// lost, so an attribute that is set back behind the cut is set back.
std::string cut_to_width(std::string_view text, int columns);

/// Foreign text for one line of a terminal: '?' in place of control characters and of bytes that
/// are not UTF-8.
std::string printable(std::string_view text);

}  // namespace dflash::report
