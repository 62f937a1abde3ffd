// SPDX-License-Identifier: Apache-2.0
#include "model_folder.hpp"

#include <algorithm>
#include <cstdlib>
#include <doctest/doctest.h>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <utility>

namespace dflash::target::testing {

namespace fs = std::filesystem;

TempFolder::TempFolder() {
    std::string pattern = (fs::temp_directory_path() / "dflash-target-XXXXXX").string();
    if (mkdtemp(pattern.data()) == nullptr) {
        throw std::runtime_error("no temporary folder: " + pattern);
    }
    path_ = pattern;
}

TempFolder::~TempFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
}

void TempFolder::write(const std::string& name, const std::string& text) const {
    fs::create_directories((path_ / name).parent_path());
    std::ofstream(path_ / name, std::ios::binary) << text;
}

std::string read_text(const fs::path& path) {
    std::ifstream file(path, std::ios::binary);
    REQUIRE(file);
    return {std::istreambuf_iterator<char>(file), {}};
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
    const std::size_t at = text.find(from);
    REQUIRE(at != std::string::npos);
    REQUIRE(text.find(from, at + 1) == std::string::npos);
    return text.replace(at, from.size(), to);
}

std::vector<OwnedTensor> read_tensors(const std::string& safetensors) {
    const io::SafetensorsFile file(safetensors);
    std::vector<OwnedTensor> tensors;
    for (const io::TensorView& view : file.tensors()) {
        tensors.push_back({.name = view.name,
                           .dtype = view.dtype,
                           .shape = view.shape,
                           .data = {view.data.begin(), view.data.end()}});
    }
    return tensors;
}

void write_tensors(const std::string& safetensors, const std::vector<OwnedTensor>& tensors) {
    std::vector<io::TensorSource> sources;
    sources.reserve(tensors.size());
    for (const OwnedTensor& tensor : tensors) {
        sources.push_back({.name = tensor.name,
                           .dtype = tensor.dtype,
                           .shape = tensor.shape,
                           .write = [&tensor](const auto& sink) { sink(tensor.data); }});
    }
    io::write_safetensors(safetensors, sources);
}

OwnedTensor& tensor_named(std::vector<OwnedTensor>& tensors, const std::string& name) {
    const auto found = std::find_if(
        tensors.begin(), tensors.end(), [&](const OwnedTensor& t) { return t.name == name; });
    REQUIRE(found != tensors.end());
    return *found;
}

void copy_target(const std::string& source,
                 const std::string& folder,
                 const std::function<void(std::vector<OwnedTensor>&)>& change) {
    fs::create_directories(folder);
    fs::copy_file(fs::path(source) / "config.json", fs::path(folder) / "config.json");
    std::vector<OwnedTensor> tensors = read_tensors(source + "/model.safetensors");
    change(tensors);
    write_tensors(folder + "/model.safetensors", tensors);
}

std::optional<Error> error_of(const std::function<void()>& action) {
    try {
        action();
    } catch (const Error& error) {
        return error;
    }
    return std::nullopt;
}

LogCapture::LogCapture() {
    former_ = set_log_sink([this](LogLevel, std::string_view line) {
        text_ += line;
        text_ += '\n';
    });
}

LogCapture::~LogCapture() {
    set_log_sink(std::move(former_));
}

}  // namespace dflash::target::testing
