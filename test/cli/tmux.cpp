// SPDX-License-Identifier: Apache-2.0
#include "tmux.hpp"

#include "process.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <doctest/doctest.h>
#include <memory>
#include <sstream>
#include <thread>
#include <unistd.h>

namespace dflash::cli {
namespace {

std::string output_of(const std::vector<std::string>& words) {
    std::string line;
    for (const std::string& word : words) {
        line += shell_quoted(word) + " ";
    }

    struct Close {
        void operator()(FILE* pipe) const { ::pclose(pipe); }
    };

    const std::unique_ptr<FILE, Close> pipe(::popen((line + "2>&1").c_str(), "re"));
    REQUIRE(pipe);
    std::string output;
    char buffer[4096];
    for (std::size_t size = 0; (size = ::fread(buffer, 1, sizeof buffer, pipe.get())) > 0;) {
        output.append(buffer, size);
    }
    return output;
}

std::vector<std::string> rows_of(const std::string& text) {
    std::vector<std::string> rows;
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) {
        rows.push_back(line);
    }
    while (!rows.empty() && rows.back().empty()) {
        rows.pop_back();
    }
    return rows;
}

}  // namespace

bool tmux_there() {
    return std::system("tmux -V > /dev/null 2>&1") == 0;
}

Tmux::Tmux(const std::string& command_line, int columns, int rows) {
    static std::atomic<int> count = 0;
    socket_ = "dflash-test-" + std::to_string(::getpid()) + "-" + std::to_string(count++);
    ::unsetenv("TMUX");  // a test may itself run in a tmux
    const std::string out = command({"new-session",
                                     "-d",
                                     "-x",
                                     std::to_string(columns),
                                     "-y",
                                     std::to_string(rows),
                                     command_line + "; echo exit code $?; exec sleep 1000"});
    REQUIRE(out.empty());
}

Tmux::~Tmux() {
    command({"kill-server"});
}

std::string Tmux::command(const std::vector<std::string>& words) const {
    std::vector<std::string> all = {"tmux", "-L", socket_, "-f", "/dev/null"};
    all.insert(all.end(), words.begin(), words.end());
    return output_of(all);
}

std::vector<std::string> Tmux::attach_command() const {
    return {"env", "TERM=xterm", "tmux", "-L", socket_, "-f", "/dev/null", "attach"};
}

void Tmux::resize(int columns, int rows) const {
    command({"resize-window", "-x", std::to_string(columns), "-y", std::to_string(rows)});
}

void Tmux::type(const std::string& keys) const {
    command({"send-keys", keys});
}

void Tmux::kill() const {
    command({"kill-session"});
}

std::vector<std::string> Tmux::capture() const {
    return rows_of(command({"capture-pane", "-p", "-S", "-10"}));
}

std::vector<std::string> Tmux::history() const {
    return rows_of(command({"capture-pane", "-p", "-J", "-S", "-"}));
}

std::vector<std::string> Tmux::wait_for(
    const std::function<bool(const std::vector<std::string>&)>& condition, double seconds) const {
    const auto until = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
    for (;;) {
        std::vector<std::string> rows = capture();
        if (condition(rows) || std::chrono::steady_clock::now() > until) {
            return rows;
        }
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
}

int count_with(const std::vector<std::string>& rows, const std::string& text) {
    return static_cast<int>(std::ranges::count_if(
        rows, [&](const std::string& row) { return row.find(text) != std::string::npos; }));
}

int count_starting(const std::vector<std::string>& rows, const std::string& text) {
    return static_cast<int>(
        std::ranges::count_if(rows, [&](const std::string& row) { return row.starts_with(text); }));
}

std::string joined(const std::vector<std::string>& rows) {
    std::string text = "\n";
    for (const std::string& row : rows) {
        text += "|" + row + "\n";
    }
    return text;
}

}  // namespace dflash::cli
