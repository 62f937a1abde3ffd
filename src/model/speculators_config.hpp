// SPDX-License-Identifier: Apache-2.0
// Reading of speculators' config.json: the published format made of it, for DraftConfig::from_json.
#pragma once

#include <dflash/io/json.hpp>

#include <string>

namespace dflash::model {

/// Whether a config.json is one of speculators.
bool is_speculators(const io::Json& json);

/// The same drafter in the published format. Layer ids become one lower. Throws Error{Config} for
/// what is no plain DFlash drafter.
io::Json from_speculators(const io::Json& json, const std::string& where);

}  // namespace dflash::model
