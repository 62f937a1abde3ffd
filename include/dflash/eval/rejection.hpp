// SPDX-License-Identifier: Apache-2.0
// The test of drafted tokens: emits tokens that are distributed exactly as the target's own.
//
// S sequences, D drafts of each at most, B = D + 1, V vocabulary.
//
// Source: Leviathan et al., "Fast inference from transformers via speculative decoding", ICML 2023
// (arXiv 2211.17192), algorithm 1; z-lab/dflash 1012959 `_rejection_sample`.
#pragma once

#include <ATen/ATen.h>

namespace dflash::eval {

struct DraftTest {
    at::Tensor target_SBV;        ///< p: what the target gives behind the anchor and each draft
    at::Tensor draft_SDV;         ///< q: what the drafts were drawn from; undefined: not drawn
    at::Tensor drafted_SD;        ///< int64; what stands behind num_drafted does not matter
    at::Tensor num_drafted_S;     ///< int64, 0 .. D
    at::Tensor test_uniforms_SD;  ///< fp32 in [0, 1)
    at::Tensor draw_uniforms_SB;  ///< fp32 in [0, 1): for the next token, by the drafts before it
};

struct DraftVerdict {
    at::Tensor accepted_S;  ///< int64: leading drafts that are kept
    at::Tensor next_S;      ///< int64: the token behind them
};

/// Draft x is kept if all before it are and u q(x) < p(x). The next token is drawn from
/// max(p - q, 0), normalised, where a draft was refused, else from the p behind the last one. All
/// probabilities are fp32; one-hot ones give greedy decoding. Asynchronous.
DraftVerdict test_drafts(const DraftTest& test);

}  // namespace dflash::eval
