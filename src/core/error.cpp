// SPDX-License-Identifier: Apache-2.0
#include <dflash/core/error.hpp>

namespace dflash {
namespace {

std::string join(const ErrorParts& parts) {
    std::string text = parts.what;
    if (!parts.cause.empty()) {
        text += ": " + parts.cause;
    }
    if (!parts.where.empty()) {
        text += " (" + parts.where + ")";
    }
    text += ".";
    if (!parts.hint.empty()) {
        text += " " + parts.hint + ".";
    }
    return text;
}

}  // namespace

std::string_view to_string(ErrorKind kind) {
    switch (kind) {
        case ErrorKind::Config:
            return "configuration";
        case ErrorKind::Data:
            return "data";
        case ErrorKind::Device:
            return "device";
        case ErrorKind::Compile:
            return "compile";
        case ErrorKind::Numeric:
            return "numeric";
        case ErrorKind::Storage:
            return "storage";
        case ErrorKind::Internal:
            return "internal";
        case ErrorKind::Cancelled:
            return "cancelled";
    }
    return "internal";
}

int exit_code(ErrorKind kind) {
    switch (kind) {
        case ErrorKind::Config:
            return 2;
        case ErrorKind::Data:
            return 3;
        case ErrorKind::Device:
        case ErrorKind::Compile:
            return 4;
        case ErrorKind::Numeric:
            return 5;
        case ErrorKind::Storage:
            return 6;
        case ErrorKind::Internal:
            return 70;
        case ErrorKind::Cancelled:
            return 130;
    }
    return 70;
}

Error::Error(ErrorKind kind, ErrorParts parts)
    : std::runtime_error(join(parts)), kind_(kind), parts_(std::move(parts)) {}

}  // namespace dflash
