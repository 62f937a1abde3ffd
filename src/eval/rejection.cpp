// SPDX-License-Identifier: Apache-2.0
#include <dflash/eval/rejection.hpp>
#include <dflash/target/sampling.hpp>
#include <dflash/tensor/bridge.hpp>

namespace dflash::eval {
namespace {

/// Row index_S[s] of each sequence, [S, V].
at::Tensor pick(const at::Tensor& x_SRV, const at::Tensor& index_S) {
    const at::Tensor index_S1V = index_S.view({-1, 1, 1}).expand({x_SRV.size(0), 1, x_SRV.size(2)});
    return x_SRV.gather(1, index_S1V).squeeze(1);
}

}  // namespace

DraftVerdict test_drafts(const DraftTest& test) {
    const std::int64_t S = test.target_SBV.size(0);
    const std::int64_t D = test.target_SBV.size(1) - 1;
    const std::int64_t V = test.target_SBV.size(2);
    tensor::expect_dtype(test.target_SBV, at::kFloat, "probabilities");
    tensor::expect_shape(test.drafted_SD, {S, D}, "drafts");
    if (D == 0) {
        return {at::zeros({S}, test.num_drafted_S.options()),
                target::draw(test.target_SBV.squeeze(1), test.draw_uniforms_SB.squeeze(1))};
    }
    const bool drawn = test.draft_SDV.defined();
    if (drawn) {
        tensor::expect_shape(test.draft_SDV, {S, D, V}, "probabilities of drafts");
    }
    const at::Tensor drafted_SD1 = test.drafted_SD.unsqueeze(2);
    const at::Tensor p_SD = test.target_SBV.narrow(1, 0, D).gather(2, drafted_SD1).squeeze(2);
    const at::Tensor q_SD =
        drawn ? test.draft_SDV.gather(2, drafted_SD1).squeeze(2) : at::ones_like(p_SD);
    const at::Tensor is_draft_SD =
        at::arange(D, test.num_drafted_S.options()).unsqueeze(0) < test.num_drafted_S.unsqueeze(1);
    const at::Tensor keeps_SD =
        (test.test_uniforms_SD * q_SD < p_SD).logical_and_(is_draft_SD).to(at::kLong);
    const at::Tensor accepted_S = keeps_SD.cumprod(1).sum(1);

    const at::Tensor refused_S1 = (accepted_S < test.num_drafted_S).unsqueeze(1);
    const at::Tensor p_SV = pick(test.target_SBV, accepted_S);
    const at::Tensor at_S = accepted_S.clamp_max(D - 1);
    at::Tensor rest_SV;
    if (drawn) {
        rest_SV = (p_SV - pick(test.draft_SDV, at_S)).clamp_min_(0);
    } else {
        rest_SV = p_SV.scatter(1, test.drafted_SD.gather(1, at_S.unsqueeze(1)), 0.0);
    }
    // Nothing is left only where rounding refused a draft of equal distributions.
    const at::Tensor has_rest_S1 = rest_SV.sum(1, /*keepdim=*/true) > 0;
    const at::Tensor next_SV = at::where(refused_S1.logical_and(has_rest_S1), rest_SV, p_SV);
    const at::Tensor uniforms_S =
        test.draw_uniforms_SB.gather(1, accepted_S.unsqueeze(1)).squeeze(1);
    return {accepted_S, target::draw(next_SV, uniforms_S)};
}

}  // namespace dflash::eval
