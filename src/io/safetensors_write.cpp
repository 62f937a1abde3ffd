// SPDX-License-Identifier: Apache-2.0
#include <dflash/core/activity.hpp>
#include <dflash/core/check.hpp>
#include <dflash/io/checksums.hpp>
#include <dflash/io/json.hpp>
#include <dflash/io/output_file.hpp>
#include <dflash/io/safetensors.hpp>

#include <array>
#include <set>

namespace dflash::io {
namespace {

constexpr Bytes kSyncEvery = Bytes{256} << 20;

/// The header as it stands in the file: length, JSON, spaces up to a multiple of 8 bytes, so that
/// the data begins aligned in a mapping.
std::string header_bytes(const std::vector<TensorSource>& tensors,
                         const std::map<std::string, std::string>& metadata,
                         std::vector<Bytes>& sizes) {
    Json header = Json::object();
    if (!metadata.empty()) {
        Json texts = Json::object();
        for (const auto& [key, value] : metadata) {
            texts.set(key, Json::string(value));
        }
        header.members().emplace_back("__metadata__", std::move(texts));
    }
    std::set<std::string_view> names;
    Bytes offset = 0;
    for (const TensorSource& tensor : tensors) {
        DFLASH_CHECK(names.insert(tensor.name).second && tensor.name != "__metadata__",
                     "a file cannot hold {} twice or as a tensor",
                     tensor.name);
        Bytes size = size_of(tensor.dtype);
        std::vector<Json> shape;
        for (const std::int64_t extent : tensor.shape) {
            DFLASH_CHECK(extent >= 0 && !__builtin_mul_overflow(size, extent, &size),
                         "{}: extent {}",
                         tensor.name,
                         extent);
            shape.push_back(Json::integer(extent));
        }
        Json entry = Json::object();
        entry.set("dtype", Json::string(std::string(to_string(tensor.dtype))));
        entry.set("shape", Json::array(std::move(shape)));
        entry.set("data_offsets",
                  Json::array({Json::integer(offset), Json::integer(offset + size)}));
        header.members().emplace_back(tensor.name, std::move(entry));
        sizes.push_back(size);
        offset += size;
    }
    std::string text = header.dump();
    text.append((8 - text.size() % 8) % 8, ' ');
    std::string bytes;
    for (int i = 0; i < 8; ++i) {
        bytes += static_cast<char>(text.size() >> (8 * i) & 0xFF);
    }
    return bytes + text;
}

}  // namespace

std::string write_safetensors(const std::string& path,
                              const std::vector<TensorSource>& tensors,
                              const std::map<std::string, std::string>& metadata) {
    std::vector<Bytes> sizes;
    const std::string header = header_bytes(tensors, metadata, sizes);
    OutputFile file(path, OutputFile::Mode::Create);
    Xxh64 hash;
    Bytes since_sync = 0;
    const auto write = [&](std::span<const std::byte> bytes) {
        file.write(bytes);
        hash.add(bytes);
        since_sync += static_cast<Bytes>(bytes.size());
        if (since_sync >= kSyncEvery) {
            file.sync();
            since_sync = 0;
        }
    };
    write(std::as_bytes(std::span(header.data(), header.size())));
    for (std::size_t i = 0; i < tensors.size(); ++i) {
        Bytes written = 0;
        tensors[i].write([&](std::span<const std::byte> piece) {
            written += static_cast<Bytes>(piece.size());
            DFLASH_CHECK(written <= sizes[i],
                         "{}: {} bytes written, {} announced",
                         tensors[i].name,
                         written,
                         sizes[i]);
            write(piece);
            note_progress();
        });
        DFLASH_CHECK(written == sizes[i],
                     "{}: {} bytes written, {} announced",
                     tensors[i].name,
                     written,
                     sizes[i]);
    }
    file.sync();
    file.close();
    return hash.hex();
}

}  // namespace dflash::io
