// SPDX-License-Identifier: Apache-2.0
#include <dflash/core/error.hpp>
#include <dflash/tensor/bridge.hpp>

#include <array>
#include <cstring>
#include <doctest/doctest.h>
#include <string>
#include <vector>

namespace dflash::tensor {
namespace {

io::TensorView view_of(io::DType dtype,
                       std::vector<std::int64_t> shape,
                       std::span<const std::byte> bytes) {
    return {.name = "w", .dtype = dtype, .shape = std::move(shape), .data = bytes};
}

std::string message_of(const std::function<void()>& action) {
    try {
        action();
    } catch (const Error& error) {
        return error.what();
    }
    return "nothing thrown";
}

TEST_SUITE("tensor.bridge") {
    TEST_CASE("every dtype of a file has one of Torch, and back") {
        for (const io::DType dtype : {io::DType::Bool,
                                      io::DType::U8,
                                      io::DType::I8,
                                      io::DType::I16,
                                      io::DType::I32,
                                      io::DType::I64,
                                      io::DType::F8E4M3,
                                      io::DType::F16,
                                      io::DType::BF16,
                                      io::DType::F32,
                                      io::DType::F64}) {
            CAPTURE(io::to_string(dtype));
            CHECK(file_dtype(scalar_type(dtype)) == dtype);
            CHECK(static_cast<Bytes>(c10::elementSize(scalar_type(dtype))) == io::size_of(dtype));
        }
        CHECK_THROWS_AS(file_dtype(at::kComplexFloat), Error);
    }

    TEST_CASE("loads values from any alignment") {
        const std::vector<float> values{1.5F, -2.25F, 3.0F, 1e-3F, 7.0F, -0.0F};
        std::array<std::byte, 64> storage{};
        for (std::size_t offset = 0; offset < 5; ++offset) {
            CAPTURE(offset);
            std::memcpy(storage.data() + offset, values.data(), values.size() * sizeof(float));
            const io::TensorView view = view_of(
                io::DType::F32, {2, 3}, {storage.data() + offset, values.size() * sizeof(float)});
            const at::Tensor loaded = load(view, at::kCPU, at::kDouble);
            CHECK(loaded.equal(at::tensor(values).to(at::kDouble).view({2, 3})));
            const at::Tensor wide = at::zeros({2, 6}, at::kBFloat16);
            load_into(view, wide.narrow(1, 2, 3), "file");
            CHECK(wide.narrow(1, 2, 3).equal(at::tensor(values).to(at::kBFloat16).view({2, 3})));
            CHECK(wide.narrow(1, 0, 2).eq(0).all().item<bool>());
        }
    }

    TEST_CASE("refuses shapes and kinds that do not fit, with names and both values") {
        const std::array<std::byte, 16> bytes{};
        const io::TensorView view = view_of(io::DType::I32, {4}, bytes);
        CHECK(message_of([&] { load(view, at::kCPU, at::kFloat); }).find("tensor w: got [4] I32") ==
              0);
        const at::Tensor other = at::zeros({5}, at::kInt);
        const std::string message = message_of([&] { load_into(view, other, "a.safetensors"); });
        CHECK(message.find("got shape [4], expected [5]") != std::string::npos);
        CHECK(message.find("a.safetensors") != std::string::npos);
    }

    TEST_CASE("shape checks name the tensor and both shapes") {
        const at::Tensor x = at::zeros({2, 3});
        expect_shape(x, {2, kAny}, "x");
        const std::string message = message_of([&] { expect_shape(x, {2, 4}, "features"); });
        CHECK(message.find("features: got shape [2, 3], expected [2, 4]") != std::string::npos);
        CHECK_THROWS_AS(expect_shape(x, {2}, "x"), Error);
        CHECK_THROWS_AS(expect_shape(at::Tensor(), {2}, "x"), Error);
        CHECK_THROWS_AS(expect_dtype(x, at::kDouble, "x"), Error);
    }

    TEST_CASE("uploads keep their values when the source goes") {
        at::Tensor uploaded;
        {
            std::vector<std::int32_t> values{3, -1, 7};
            uploaded = upload(std::span<const std::int32_t>(values), at::kCPU);
            values.assign(3, 0);
        }
        CHECK(uploaded.equal(at::tensor({3, -1, 7}, at::kInt)));
        CHECK(upload(std::span<const float>(), at::kCPU).numel() == 0);
        const at::Tensor bytes = at::tensor({1, 2, 3}, at::kInt);
        CHECK(bytes_of(bytes).size() == 12);
        const at::Tensor room = at::full({5}, 9, at::kInt);
        const std::vector<std::int32_t> values{4, 5};
        upload_into(room.narrow(0, 1, 2), values);
        CHECK(room.equal(at::tensor({9, 4, 5, 9, 9}, at::kInt)));
        CHECK_THROWS_AS(upload_into(room, values), Error);
    }
}

}  // namespace
}  // namespace dflash::tensor
