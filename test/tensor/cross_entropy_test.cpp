// SPDX-License-Identifier: Apache-2.0
#include <dflash/tensor/cross_entropy.hpp>
#include <dflash/tensor/row_ops.hpp>

#include <ATen/ATen.h>
#include <cmath>
#include <doctest/doctest.h>
#include <vector>

namespace dflash::tensor {
namespace {

struct Case {
    at::Tensor logits_CV;
    at::Tensor label_C;
    at::Tensor cross_entropy_C;
    at::Tensor argmax_C;

    Case(std::int64_t rows, std::int64_t words, at::ScalarType dtype) {
        at::manual_seed(11);
        logits_CV = at::randn({rows, words}, at::kDouble).mul_(3).to(dtype);
        label_C = at::randint(words, {rows}, at::kLong);
        cross_entropy_C = at::empty({rows}, dtype);
        argmax_C = at::empty({rows}, at::kLong);
    }

    /// P - onehot(label) in fp64.
    at::Tensor gradient() const {
        at::Tensor result = logits_CV.to(at::kDouble).softmax(1);
        return result.scatter_add_(
            1, label_C.unsqueeze(1), at::full({label_C.size(0), 1}, -1.0, at::kDouble));
    }

    at::Tensor cross_entropy() const {
        return -logits_CV.to(at::kDouble).log_softmax(1).gather(1, label_C.unsqueeze(1)).squeeze(1);
    }
};

double largest(const at::Tensor& got, const at::Tensor& expected) {
    return (got.to(at::kDouble) - expected).abs().max().item<double>();
}

TEST_SUITE("tensor.cross_entropy") {
    TEST_CASE("loss, argmax and gradient are those of fp64") {
        for (const at::ScalarType dtype : {at::kFloat, at::kDouble}) {
            CAPTURE(at::toString(dtype));
            const Case c(9, 301, dtype);
            const double unit = dtype == at::kDouble ? 1e-14 : 1e-6;
            const at::Tensor gradient = c.gradient();
            const at::Tensor loss = c.cross_entropy();
            const at::Tensor argmax = c.logits_CV.argmax(1);
            TorchRowOps ops;
            const LogitsGradient got = ops.cross_entropy(
                c.cross_entropy_C, c.argmax_C, c.logits_CV, c.label_C, dtype, true);
            CHECK(largest(got.gradient_CV / got.divisor_C1, gradient) < unit);
            CHECK(largest(c.cross_entropy_C, loss) < 10 * unit);
            CHECK(c.argmax_C.equal(argmax));
        }
    }

    TEST_CASE("gradients for bf16 products are rounded once, and their memory is used again") {
        TorchRowOps ops;
        at::Tensor first;
        for (const std::int64_t rows : {12, 7}) {
            const Case c(rows, 64, at::kFloat);
            const at::Tensor gradient = c.gradient();
            const LogitsGradient got = ops.cross_entropy(
                c.cross_entropy_C, c.argmax_C, c.logits_CV, c.label_C, at::kBFloat16, true);
            CHECK((got.gradient_CV.scalar_type() == at::kBFloat16));
            const at::Tensor error =
                (got.gradient_CV.to(at::kDouble) / got.divisor_C1 - gradient).abs();
            CHECK(error.le(gradient.abs() * (1.0 / 256) + 1e-6).all().item<bool>());
            if (first.defined()) {
                CHECK(got.gradient_CV.is_alias_of(first));
            }
            first = got.gradient_CV;
        }
    }

    TEST_CASE("without a gradient there is none, and the loss is the same") {
        TorchRowOps ops;
        const Case a(5, 40, at::kFloat);
        const Case b(5, 40, at::kFloat);
        ops.cross_entropy(a.cross_entropy_C, a.argmax_C, a.logits_CV, a.label_C, at::kFloat, true);
        const LogitsGradient none = ops.cross_entropy(
            b.cross_entropy_C, b.argmax_C, b.logits_CV, b.label_C, at::kFloat, false);
        CHECK_FALSE(none.gradient_CV.defined());
        CHECK(a.cross_entropy_C.equal(b.cross_entropy_C));
    }

    TEST_CASE("the entry of a label that is all but certain keeps its small value in bf16") {
        Case c(1, 50, at::kFloat);
        c.logits_CV.fill_(0);
        c.label_C.fill_(13);
        c.logits_CV[0][13] = 12;
        const double others = 49 * std::exp(-12.0);
        TorchRowOps ops;
        const LogitsGradient got = ops.cross_entropy(
            c.cross_entropy_C, c.argmax_C, c.logits_CV, c.label_C, at::kBFloat16, true);
        const double entry =
            got.gradient_CV[0][13].item<double>() / got.divisor_C1[0][0].item<double>();
        CHECK(entry == doctest::Approx(-others / (1 + others)).epsilon(5e-3));
    }
}

}  // namespace
}  // namespace dflash::tensor
