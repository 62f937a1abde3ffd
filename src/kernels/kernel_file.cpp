// SPDX-License-Identifier: Apache-2.0
#include "kernel_file.hpp"

#include <dflash/core/error.hpp>
#include <dflash/core/sha256.hpp>
#include <dflash/io/json.hpp>

#include <fmt/format.h>

namespace dflash::kernels {
namespace {

constexpr std::string_view kMagic = "dflash-kernel 1 ";
constexpr std::size_t kChecksumDigits = 64;

[[noreturn]] void refuse(const std::string& what) {
    throw Error(ErrorKind::Storage, {.what = what, .where = {}, .cause = {}, .hint = {}});
}

int to_int(const io::Json& json, std::string_view key) {
    return static_cast<int>(json.require_integer(key, "kernel file"));
}

}  // namespace

std::string encode_kernel_file(const KernelFile& file) {
    const KernelResources& resources = file.binary.resources;
    const io::Json header = io::Json::object({
        {"kernel", io::Json::string(file.kernel)},
        {"architecture", io::Json::string(file.architecture)},
        {"digest", io::Json::string(file.digest)},
        {"compiler", io::Json::string(file.binary.compiler)},
        {"program", io::Json::string(DFLASH_VERSION)},
        {"registers", io::Json::integer(resources.registers)},
        {"stack_bytes", io::Json::integer(resources.stack_bytes)},
        {"spill_store_bytes", io::Json::integer(resources.spill_store_bytes)},
        {"spill_load_bytes", io::Json::integer(resources.spill_load_bytes)},
        {"static_shared_bytes", io::Json::integer(resources.static_shared_bytes)},
        {"compile_s", io::Json::number(file.binary.compile_s)},
        {"cubin_bytes", io::Json::integer(static_cast<std::int64_t>(file.binary.cubin.size()))},
    });
    const std::string body = header.dump() + "\n" + file.binary.cubin;
    return fmt::format("{}{}\n{}", kMagic, sha256_hex(body), body);
}

KernelFile decode_kernel_file(std::string_view bytes) {
    if (!bytes.starts_with(kMagic)) {
        refuse("it is no kernel file of this version");
    }
    bytes.remove_prefix(kMagic.size());
    if (bytes.size() <= kChecksumDigits || bytes[kChecksumDigits] != '\n') {
        refuse("its first line is cut short");
    }
    const std::string_view checksum = bytes.substr(0, kChecksumDigits);
    const std::string_view body = bytes.substr(kChecksumDigits + 1);
    if (sha256_hex(body) != checksum) {
        refuse("its checksum does not fit");
    }
    const std::size_t line_end = body.find('\n');
    if (line_end == std::string_view::npos) {
        refuse("it has no header");
    }
    const io::Json header = io::Json::parse(body.substr(0, line_end), "kernel file");
    KernelFile file{
        .kernel = header.require_string("kernel", "kernel file"),
        .architecture = header.require_string("architecture", "kernel file"),
        .digest = header.require_string("digest", "kernel file"),
        .binary = {.cubin = std::string(body.substr(line_end + 1)),
                   .resources = {.registers = to_int(header, "registers"),
                                 .stack_bytes = to_int(header, "stack_bytes"),
                                 .spill_store_bytes = to_int(header, "spill_store_bytes"),
                                 .spill_load_bytes = to_int(header, "spill_load_bytes"),
                                 .static_shared_bytes = to_int(header, "static_shared_bytes")},
                   .compiler = header.require_string("compiler", "kernel file"),
                   .compile_s = header.require_number("compile_s", "kernel file")}};
    if (to_int(header, "cubin_bytes") != static_cast<int>(file.binary.cubin.size())) {
        refuse("its machine code is cut short");
    }
    return file;
}

std::string kernel_file_name(const CacheKey& key) {
    // Of the digests, as much as makes a collision impossible in practice; the file holds both in
    // full, and loading compares them.
    constexpr std::size_t kDigestDigits = 40;
    constexpr std::size_t kCompilerDigits = 8;
    const std::string name = key.digest.substr(0, kDigestDigits) + "-";
    return key.compiler ? name + sha256_hex(*key.compiler).substr(0, kCompilerDigits) +
                              std::string(kKernelFileSuffix)
                        : name;
}

}  // namespace dflash::kernels
