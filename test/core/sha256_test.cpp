// SPDX-License-Identifier: Apache-2.0
#include <dflash/core/sha256.hpp>

#include <doctest/doctest.h>
#include <string>
#include <utility>
#include <vector>

namespace dflash {
namespace {

TEST_SUITE("core.sha256") {
    TEST_CASE("sha256: gives the digests of NIST's examples") {
        // FIPS 180-2 appendix B and NIST's "SHA-256 example values" for the empty message.
        const std::vector<std::pair<std::string, std::string>> cases = {
            {"", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"},
            {"abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"},
            {"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
             "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1"},
            {std::string(1000000, 'a'),
             "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0"},
        };
        for (const auto& [text, digest] : cases) {
            CAPTURE(text.size());
            CHECK(sha256_hex(text) == digest);
        }
    }

    TEST_CASE("sha256: pieces of any size give the digest of the whole") {
        std::string text;
        for (int i = 0; i < 300; ++i) {
            text += static_cast<char>(i * 7);
        }
        const std::string whole = sha256_hex(text);
        for (const std::size_t piece : {1U, 3U, 55U, 56U, 63U, 64U, 65U, 128U, 299U}) {
            CAPTURE(piece);
            Sha256 hash;
            for (std::size_t at = 0; at < text.size(); at += piece) {
                hash.add(text.substr(at, piece));
            }
            CHECK(hash.finish() == whole);
        }
    }

    TEST_CASE("sha256: fields are told apart where their concatenations are equal") {
        const auto digest = [](const std::vector<std::string>& fields) {
            Sha256 hash;
            for (const std::string& field : fields) {
                hash.add_field(field);
            }
            return hash.finish();
        };
        CHECK(digest({"ab", "c"}) != digest({"a", "bc"}));
        CHECK(digest({"ab", ""}) != digest({"ab"}));
        CHECK(digest({"1:a"}) != digest({"1", "a"}));
    }
}

}  // namespace
}  // namespace dflash
