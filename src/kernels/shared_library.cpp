// SPDX-License-Identifier: Apache-2.0
#include "shared_library.hpp"

#include <dflash/core/error.hpp>

#include <cstddef>
#include <cstdint>
#include <dlfcn.h>
#include <elf.h>
#include <filesystem>
#include <fmt/format.h>
#include <link.h>
#include <span>
#include <string_view>
#include <system_error>

namespace dflash::kernels {
namespace {

struct Search {
    ElfW(Addr) address;           // what is looked for
    const unsigned char* memory;  // the same place as a pointer
    std::string build_id;
};

constexpr std::size_t align4(std::size_t size) {
    return (size + 3) / 4 * 4;
}

// Looks through the notes of a segment; returns the build id in hexadecimal, or nothing.
std::string build_id_in_notes(std::span<const unsigned char> notes) {
    while (notes.size() >= sizeof(ElfW(Nhdr))) {
        const auto* header = reinterpret_cast<const ElfW(Nhdr)*>(notes.data());
        const std::size_t name_at = sizeof(ElfW(Nhdr));
        const std::size_t data_at = name_at + align4(header->n_namesz);
        const std::size_t next_at = data_at + align4(header->n_descsz);
        if (next_at > notes.size()) {
            break;
        }
        const std::string_view name(reinterpret_cast<const char*>(notes.data()) + name_at,
                                    header->n_namesz);
        if (header->n_type == NT_GNU_BUILD_ID && name.starts_with("GNU")) {
            std::string hex;
            for (const unsigned char byte : notes.subspan(data_at, header->n_descsz)) {
                hex += fmt::format("{:02x}", byte);
            }
            return hex;
        }
        notes = notes.subspan(next_at);
    }
    return {};
}

int look_at_object(dl_phdr_info* object, std::size_t /*size*/, void* data) {
    Search& search = *static_cast<Search*>(data);
    if (object->dlpi_addr != search.address) {
        return 0;
    }
    for (const ElfW(Phdr) & segment : std::span(object->dlpi_phdr, object->dlpi_phnum)) {
        if (segment.p_type == PT_NOTE && search.build_id.empty()) {
            search.build_id = build_id_in_notes({search.memory + segment.p_vaddr, segment.p_memsz});
        }
    }
    return 1;
}

}  // namespace

SharedLibrary::SharedLibrary(const std::vector<std::string>& names) {
    for (const std::string& name : names) {
        handle_ = ::dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
        if (handle_ != nullptr) {
            break;
        }
        const char* reason = ::dlerror();
        failure_ += fmt::format("{}{}", failure_.empty() ? "" : "\n", reason ? reason : name);
    }
    link_map* map = nullptr;
    if (handle_ == nullptr || ::dlinfo(handle_, RTLD_DI_LINKMAP, &map) != 0) {
        return;
    }
    failure_.clear();
    path_ = map->l_name;
    Dl_info info{};
    Search search{.address = map->l_addr, .memory = nullptr, .build_id = {}};
    if (::dladdr(map->l_ld, &info) != 0) {
        search.memory = static_cast<const unsigned char*>(info.dli_fbase);
        ::dl_iterate_phdr(look_at_object, &search);
    }
    constexpr std::size_t kDigits = 16;
    std::error_code error;
    build_ = search.build_id.empty()
                 ? fmt::format("size-{}", std::filesystem::file_size(path_, error))
                 : search.build_id.substr(0, kDigits);
}

void* SharedLibrary::find(const char* name) const {
    return handle_ == nullptr ? nullptr : ::dlsym(handle_, name);
}

void* SharedLibrary::require(const char* name) const {
    void* address = find(name);
    if (address == nullptr) {
        throw Error(ErrorKind::Device,
                    {.what = fmt::format("{} has no function {}", path_, name),
                     .where = {},
                     .cause = {},
                     .hint = "Look for a damaged or foreign library of that name"});
    }
    return address;
}

}  // namespace dflash::kernels
