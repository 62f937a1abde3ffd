// SPDX-License-Identifier: Apache-2.0
// Calls a reader with damaged files until its time is over. What it may do with them is read them
// or throw an Error that a user can act on; a crash, a hang (30 s on one input), another exception
// or an internal error fails.
//
// Every input is a pure function of the target, a seed and the number of the round, so whatever
// fails is made again by DFLASH_FUZZ_ROUND. The environment:
//   DFLASH_FUZZ_SECONDS   time per target; 2 if not set
//   DFLASH_FUZZ_SEED      another series of inputs; 1 if not set
//   DFLASH_FUZZ_ROUND     this round only
#pragma once

#include <dflash/core/random.hpp>
#include <dflash/io/json.hpp>

#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace dflash::test {

struct FuzzTarget {
    std::string_view name;  ///< a literal: signal handlers print it
    std::function<std::string(RandomStream&)> make_input;
    std::function<void(const std::string&)> read;  ///< throws Error, or nothing
};

/// Runs the rounds and checks that both outcomes occurred: inputs that were read and inputs that
/// were refused. Otherwise the damage is too weak or too strong to try anything.
void fuzz(const FuzzTarget& target);

/// A copy with one to three changes of structure: a value replaced by one of another kind or by a
/// number at an edge, a member removed, doubled, renamed or moved elsewhere, deep nesting.
io::Json mutate_json(const io::Json& json, RandomStream& random);

/// One of the seeds, changed as a tree, as text, or as both.
std::string mutate_json_text(const std::vector<std::string>& seeds, RandomStream& random);

std::string read_seed(const std::string& path);

}  // namespace dflash::test
