"""`alula chat`: history, commands, and Ctrl-C that ends an answer and not the program."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import time
from pathlib import Path

from running import Alula, Process

QUICK = ("--dtype", "float32", "--max-tokens", "12")


def test_a_piped_line_is_a_message_and_the_conversation_goes_on(
    alula: Alula, tiny_model: Path
) -> None:
    chat = ("chat", tiny_model, *QUICK)
    code, both, err = alula(*chat, stdin=b"Tell me about the quick brown fox.\nAnd the dog?\n")
    assert code == 0
    first = alula(*chat, stdin=b"Tell me about the quick brown fox.\n").out
    second = alula(*chat, stdin=b"And the dog?\n").out
    assert both.startswith(first)
    assert both.removeprefix(first) != second, "the second answer does not know the first message"
    assert "prompt tokens from the cache" in err.splitlines()[1]


def test_reset_forgets_and_exit_leaves(alula: Alula, tiny_model: Path) -> None:
    chat = ("chat", tiny_model, *QUICK)
    once = alula(*chat, stdin=b"Hello\n").out
    assert alula(*chat, stdin=b"Hello\n/reset\nHello\n/exit\nHello\n").out == once * 2


def test_the_system_message_counts_and_survives_a_reset(alula: Alula, tiny_model: Path) -> None:
    chat = ("chat", tiny_model, *QUICK)
    told = alula(*chat, "--system", "Be brief.", stdin=b"Hello\n/reset\nHello\n").out
    half = len(told) // 2
    assert told[:half] == told[half:] != alula(*chat, stdin=b"Hello\n").out


def test_help_lists_the_commands_and_an_unknown_one_is_refused(
    alula: Alula, tiny_model: Path
) -> None:
    code, out, err = alula("chat", tiny_model, *QUICK, stdin=b"/help\n\n/quit\n")
    assert (code, out) == (2, "")
    assert "/reset" in err and "there is no /quit" in err


def test_a_full_context_says_how_to_go_on(alula: Alula, tiny_model: Path) -> None:
    chat = ("chat", tiny_model, "--dtype", "float32", "--max-length", "64")
    code, out, err = alula(*chat, stdin=b"Hello\nHello again\n")
    assert code == 2
    assert out.count("\n") >= 1
    assert "the conversation fills its context of 64 tokens" in err
    assert "cannot be answered" in err
    assert err.count("/reset") == 2


def test_a_model_without_template_cannot_chat(alula: Alula, plain_model: Path) -> None:
    code, _, err = alula("chat", plain_model, *QUICK, stdin=b"Hello\n")
    assert code == 2
    assert "chat template" in err


def test_what_is_no_utf8_is_named_as_such(process: Process, tiny_model: Path) -> None:
    command, env = process
    done = subprocess.run(
        [*command, "chat", str(tiny_model), *QUICK],
        env=env | {"PYTHONIOENCODING": "utf-8:surrogateescape"},
        input=b"a\xff\n",
        capture_output=True,
    )
    assert done.returncode == 2
    assert done.stderr.decode().splitlines()[-3:] == [
        "error: standard input is not valid UTF-8",
        "  why: invalid start byte at byte 1",
        "  fix: save the text as UTF-8",
    ]


class Terminal:
    """A terminal with alula in it."""

    def __init__(self, process: Process, *arguments: str) -> None:
        command, env = process
        self._ours, theirs = pty.openpty()
        self.alula = subprocess.Popen(
            [*command, *arguments],
            env=env | {"TERM": "dumb"},
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
            close_fds=True,
        )
        os.close(theirs)
        self.seen = ""
        self._fresh = b""

    def type(self, text: str) -> None:
        os.write(self._ours, text.encode())

    def wait_for(
        self, text: str, *, seconds: float = 60, press: signal.Signals | None = None
    ) -> None:
        """Read until `text` appears behind what was waited for before.

        `press` is sent once a second meanwhile: a prompt shows a moment before the line editor
        listens, and what arrives in between is lost.
        """
        end = time.monotonic() + seconds
        while not self._fresh or text.encode() not in self._fresh:
            assert time.monotonic() < end, (text, self.seen, self._fresh)
            if select.select([self._ours], [], [], 1.0)[0]:
                self._fresh += os.read(self._ours, 4096)
            elif press is not None:
                self.alula.send_signal(press)
        before, found, self._fresh = self._fresh.partition(text.encode() or self._fresh)
        self.seen += (before + found).decode("utf-8", "replace")

    def close(self) -> int:
        code = self.alula.wait(timeout=30)
        os.close(self._ours)
        return code


def test_ctrl_c_ends_the_answer_and_then_only_the_line(process: Process, tiny_model: Path) -> None:
    terminal = Terminal(process, "chat", str(tiny_model), "--dtype", "float32")
    terminal.wait_for("› ")
    terminal.type("Hello\n")
    terminal.wait_for("Hello\r\n")
    terminal.wait_for("")  # the answer has begun
    terminal.alula.send_signal(signal.SIGINT)
    terminal.wait_for("stopped")
    terminal.wait_for("› ")
    terminal.wait_for("Ctrl-D or /exit leaves", press=signal.SIGINT)
    terminal.type("/exit\n")
    assert terminal.close() == 0
    assert "Traceback" not in terminal.seen


def test_ctrl_d_leaves(process: Process, tiny_model: Path) -> None:
    terminal = Terminal(process, "chat", str(tiny_model), "--dtype", "float32")
    terminal.wait_for("› ")
    terminal.type("\x04")
    assert terminal.close() == 0
