// SPDX-License-Identifier: Apache-2.0
#include <dflash/io/storage_error.hpp>

#include <cerrno>
#include <filesystem>
#include <fmt/format.h>
#include <system_error>

namespace dflash::io {
namespace {

/// Free bytes of the file system of a path whose last part may not exist.
std::string free_space(const std::string& path) {
    std::error_code error;
    std::filesystem::path existing = std::filesystem::absolute(path, error);
    while (!existing.empty() && !std::filesystem::exists(existing, error) &&
           existing != existing.parent_path()) {
        existing = existing.parent_path();
    }
    const std::filesystem::space_info space = std::filesystem::space(existing, error);
    return error ? "" : fmt::format(", {} bytes free", space.available);
}

std::string hint_of(int error_number, const std::string& path) {
    switch (error_number) {
        case ENOENT:
        case ENOTDIR:
        case ELOOP:
        case ENAMETOOLONG: {
            std::error_code ignored;
            return std::filesystem::path(path).is_absolute()
                       ? "Check the path"
                       : fmt::format("Check the path; it begins in the working directory {}",
                                     std::filesystem::current_path(ignored).string());
        }
        case ENOSPC:
        case EDQUOT:
            return "Free some space there, or choose another folder";
        case EROFS:
            return "The file system is read-only; choose another folder";
        case EACCES:
        case EPERM:
            return "Check the permissions of the file and of the folders above it";
        case EMFILE:
        case ENFILE:
            return "Raise the limit of open files (ulimit -n)";
        default:
            return "";
    }
}

}  // namespace

Error storage_error(std::string_view what,
                    const std::string& path,
                    int error_number,
                    ErrorKind kind) {
    std::string cause = std::generic_category().message(error_number);
    if (error_number == ENOSPC || error_number == EDQUOT) {
        cause += free_space(path);
    }
    return Error(kind,
                 {.what = fmt::format("{} {}", what, path),
                  .where = path,
                  .cause = std::move(cause),
                  .hint = hint_of(error_number, path)});
}

}  // namespace dflash::io
