// SPDX-License-Identifier: Apache-2.0
#include "compression.hpp"

#include <dflash/core/error.hpp>
#include <dflash/io/atomic_file.hpp>
#include <dflash/io/storage_error.hpp>
#include <dflash/io/unpacked_file.hpp>

#include <cerrno>
#include <cstdlib>
#include <fcntl.h>
#include <filesystem>
#include <fmt/format.h>
#include <unistd.h>

namespace dflash::io {

namespace {

// A file without a name: whatever ends the process, nothing of it is left.
class ScratchFile : NonCopyable {
  public:
    explicit ScratchFile(const std::string& folder) : path_(folder + "/.unpacked-XXXXXX") {
        descriptor_ = ::mkostemp(path_.data(), O_CLOEXEC);
        if (descriptor_ < 0) {
            throw storage_error("cannot unpack to", folder, errno);
        }
        ::unlink(path_.c_str());
    }

    ~ScratchFile() { ::close(descriptor_); }

    void write(std::string_view bytes) {
        while (!bytes.empty()) {
            const ::ssize_t taken = ::write(descriptor_, bytes.data(), bytes.size());
            if (taken < 0 && errno != EINTR) {
                throw storage_error("cannot unpack to", path_, errno);
            }
            bytes.remove_prefix(taken < 0 ? 0 : static_cast<std::size_t>(taken));
        }
    }

    // The mapping outlives this object.
    MappedFile map() const { return MappedFile(fmt::format("/proc/self/fd/{}", descriptor_)); }

  private:
    std::string path_;
    int descriptor_ = -1;
};

}  // namespace

UnpackedFile::UnpackedFile(const std::string& path, const std::string& scratch_folder) {
    // What is not there is a wrong command line; what is there but holds no rows is wrong data, a
    // folder like an empty file.
    MappedFile file(path, ErrorKind::Config, ErrorKind::Data);
    is_packed_ = compression_of(file.bytes()) != Compression::None;
    if (!is_packed_) {
        mapped_ = std::move(file);
        return;
    }
    std::optional<ScratchFile> scratch;
    unpack(file.bytes(), path, [&](std::string_view piece) {
        if (!scratch && memory_.size() + piece.size() > kMostInMemory) {
            const std::string folder = scratch_folder.empty()
                                           ? std::filesystem::temp_directory_path().string()
                                           : scratch_folder;
            create_folders(folder);
            scratch.emplace(folder);
            scratch->write(memory_);
            memory_ = {};
        }
        if (scratch) {
            scratch->write(piece);
        } else {
            memory_ += piece;
        }
    });
    if (scratch) {
        mapped_ = scratch->map();
    }
}

void UnpackedFile::forget(std::size_t offset, std::size_t size) const {
    if (mapped_) {
        mapped_->advise(MappedFile::Advice::DontNeed, offset, size);
    }
}

}  // namespace dflash::io
