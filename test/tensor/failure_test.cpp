// SPDX-License-Identifier: Apache-2.0
#include <dflash/core/error.hpp>
#include <dflash/tensor/failure.hpp>

#include <c10/util/Exception.h>
#include <doctest/doctest.h>
#include <stdexcept>
#include <string>

namespace dflash::tensor {
namespace {

template <class E>
std::exception_ptr thrown(E error) {
    return std::make_exception_ptr(std::move(error));
}

c10::Error torch_error(const std::string& text) {
    return {c10::SourceLocation{"f", "file", 1}, text};
}

// The Error that a failure becomes; fails if it becomes none.
Error became(const std::exception_ptr& failure) {
    try {
        std::rethrow_exception(as_failure(failure));
    } catch (const Error& error) {
        return error;
    } catch (...) {
        FAIL("no Error");
        throw;
    }
}

TEST_SUITE("tensor.failure") {
    TEST_CASE("what CUDA or its memory refuse is a failure of the device") {
        const Error memory = became(thrown(
            c10::OutOfMemoryError(c10::SourceLocation{"f", "file", 1}, "CUDA out of memory.")));
        CHECK(memory.kind() == ErrorKind::Device);
        CHECK(std::string(memory.what()).find("data.row_tokens") != std::string::npos);
        for (const char* text : {"CUDA error: no kernel image is available for execution",
                                 "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling ..."}) {
            CAPTURE(text);
            const Error error = became(thrown(torch_error(text)));
            CHECK(error.kind() == ErrorKind::Device);
            CHECK(error.parts().cause.find(text) == 0);
        }
    }

    TEST_CASE("a variable that LibTorch refuses is a fault of the configuration") {
        const Error error =
            became(thrown(torch_error("Unrecognized CachingAllocator option: nonsense")));
        CHECK(error.kind() == ErrorKind::Config);
    }

    TEST_CASE("every other failure stays what it was") {
        for (const std::exception_ptr& failure :
             {thrown(torch_error("mat1 and mat2 shapes cannot be multiplied")),
              thrown(std::runtime_error("CUDA error: of somebody else")),
              thrown(
                  Error(ErrorKind::Data, {.what = "x", .where = {}, .cause = {}, .hint = {}}))}) {
            CHECK(as_failure(failure) == failure);
        }
    }
}

}  // namespace
}  // namespace dflash::tensor
