// SPDX-License-Identifier: Apache-2.0
// Whether drafted greedy decoding gave what plain greedy decoding gives, token by token.
//
// A pass over a block and a pass over one token multiply matrices of other shapes, which round
// differently; where two logits lie closer than that, either token is the right one. Such ties are
// told from faults by the distance of the two logits, and counted.
#pragma once

#include <dflash/eval/decode_rounds.hpp>

#include <c10/core/ScalarType.h>
#include <cstdint>
#include <span>
#include <vector>

namespace dflash::eval {

/// Where a text went another way than the plain one at two logits too close to tell.
struct GreedyTie {
    std::int64_t id = 0;        ///< of the task
    std::int64_t position = 0;  ///< among the tokens emitted
    TokenId plain = -1;
    TokenId drafted = -1;
    double distance = 0;  ///< between the two logits
};

struct GreedyComparison {
    std::int64_t texts = 0;
    std::int64_t tokens = 0;  ///< found equal
    std::vector<GreedyTie> ties;
    /// Largest difference between the two runs' logits of tokens that both chose: how much rounding
    /// there really was. 0 where the plain texts have no leads.
    double largest_rounding = 0;
};

/// Logits closer than this are a tie, where the larger one is `logit`: 1/64 of its magnitude in
/// bf16 and fp16 (four units in the last place of a bf16 number of that size), 2^-16 of it in fp32
/// and fp64.
double tie_distance(at::ScalarType compute_dtype, double logit);

/// The distance of the logits of two tokens behind the first `position` tokens of text `index`.
using LogitDistance =
    std::function<double(std::size_t index, std::size_t position, TokenId plain, TokenId drafted)>;

/// Compares texts of the same tasks up to the first tie of each. Plain texts may come without
/// leads. Where the leads that are there do not name both tokens, `distance_of` is asked, if it is
/// given. Throws Error{Internal} at the first difference that is no tie, with the row (`name_of`
/// its id), the position, both tokens and both logits.
GreedyComparison compare_greedy(std::span<const DecodedText> plain,
                                std::span<const DecodedText> drafted,
                                at::ScalarType compute_dtype,
                                const std::function<std::string(std::int64_t)>& name_of,
                                const LogitDistance& distance_of = {});

}  // namespace dflash::eval
