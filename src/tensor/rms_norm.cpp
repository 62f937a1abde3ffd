// SPDX-License-Identifier: Apache-2.0
#include <dflash/core/check.hpp>
#include <dflash/tensor/bridge.hpp>
#include <dflash/tensor/rms_norm.hpp>

#include <vector>

namespace dflash::tensor {
namespace {

std::vector<std::int64_t> row_shape(const at::Tensor& x) {
    std::vector<std::int64_t> shape = x.sizes().vec();
    shape.back() = 1;
    return shape;
}

}  // namespace

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight_D, double eps) {
    at::Tensor y = at::empty(x.sizes(), weight_D.options());
    rms_norm_out(y, x, weight_D, eps);
    return y;
}

void rms_norm_out(const at::Tensor& y,
                  const at::Tensor& x,
                  const at::Tensor& weight_D,
                  double eps,
                  const at::Tensor* inverse_rms) {
    const at::ScalarType sum = sum_dtype(x.scalar_type());
    at::Tensor r =
        inverse_rms != nullptr ? *inverse_rms : at::empty(row_shape(x), x.options().dtype(sum));
    expect_dtype(r, sum, "inverse rms");
    at::linalg_vector_norm_out(r, x, 2, at::IntArrayRef{-1}, /*keepdim=*/true, sum);
    r.square_().div_(static_cast<double>(x.size(-1))).add_(eps).rsqrt_();
    rms_norm_again(y, x, weight_D, r);
}

void rms_norm_again(const at::Tensor& y,
                    const at::Tensor& x,
                    const at::Tensor& weight_D,
                    const at::Tensor& inverse_rms) {
    const at::ScalarType sum = inverse_rms.scalar_type();
    if (y.scalar_type() == sum && x.scalar_type() == sum) {
        at::Tensor out = y;
        at::mul_out(out, x, inverse_rms);
        out.mul_(weight_D);
    } else {
        y.copy_(at::mul(x, inverse_rms).mul_(weight_D));
    }
}

void rms_norm_backward(const at::Tensor& dx,
                       bool add,
                       const at::Tensor& dweight_D,
                       const at::Tensor& dy,
                       const at::Tensor& x,
                       const at::Tensor& weight_D,
                       const at::Tensor& inverse_rms) {
    const at::ScalarType sum = inverse_rms.scalar_type();
    expect_dtype(dweight_D, sum, "dw of a norm");
    const std::int64_t D = x.size(-1);
    const at::Tensor weight = weight_D.to(sum);
    at::Tensor g = dy.to(sum);
    const at::Tensor xhat = at::mul(x, inverse_rms);
    const at::Tensor product = at::mul(g, xhat);
    dweight_D.add_(product.view({-1, D}).sum(0));
    const at::Tensor mean =
        at::mv(product.view({-1, D}), weight).div_(static_cast<double>(D)).view(row_shape(x));
    g.mul_(weight).addcmul_(xhat, mean, -1);
    if (add) {
        dx.addcmul_(g, inverse_rms);
    } else if (dx.scalar_type() == sum) {
        at::Tensor out = dx;
        at::mul_out(out, g, inverse_rms);
    } else {
        dx.copy_(g.mul_(inverse_rms));
    }
}

}  // namespace dflash::tensor
