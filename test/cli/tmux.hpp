// SPDX-License-Identifier: Apache-2.0
// A tmux of the test's own: a server on a socket of its own, one session with one pane.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace dflash::cli {

/// Whether there is a tmux on this machine.
bool tmux_there();

class Tmux {
  public:
    /// Runs `command` with a shell in a pane of that size; the pane stays when it ends, below a
    /// line "exit code N".
    Tmux(const std::string& command, int columns, int rows);
    ~Tmux();  ///< kills the server
    Tmux(const Tmux&) = delete;
    Tmux& operator=(const Tmux&) = delete;

    void resize(int columns, int rows) const;

    /// Types into the pane, with tmux's names of keys ("C-c").
    void type(const std::string& keys) const;

    /// Kills the session, and with it the pane.
    void kill() const;

    /// What tmux says to a command of its own.
    std::string command(const std::vector<std::string>& words) const;

    /// Words that attach a client to the session.
    std::vector<std::string> attach_command() const;

    /// Rows of the pane and up to ten before it, without empty ones at the end (capture-pane -p -S
    /// -10).
    std::vector<std::string> capture() const;

    /// All rows, from the beginning of the scrollback, lines that were wrapped joined.
    std::vector<std::string> history() const;

    /// Captures again and again until the condition holds; what was captured last.
    std::vector<std::string> wait_for(
        const std::function<bool(const std::vector<std::string>&)>& condition,
        double seconds) const;

  private:
    std::string socket_;
};

/// Rows that hold a text.
int count_with(const std::vector<std::string>& rows, const std::string& text);

/// Rows that begin with it.
int count_starting(const std::vector<std::string>& rows, const std::string& text);

/// All rows, for a message.
std::string joined(const std::vector<std::string>& rows);

}  // namespace dflash::cli
