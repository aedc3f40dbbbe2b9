"""Lines that hold the words of a failure and report none.

Source code, help texts, what clients sent, and what a server says at a low level: each may quote a
phrase, and a phrase that is quoted is not a failure.
"""

from __future__ import annotations

import re

_SOURCE = re.compile(
    r"\s*(?:raise\b\s*[\w.]*\(|#\s|(?:\w{1,40}\.){0,4}_?(?:logg?(?:er|ing)|warnings|print\w{0,20})\b[.(]"
    r"|(?:if|elif|while|except|return)\b[^'\"]{0,200}['\"].{0,400}[:)]\s*$"
    r"|(?:\w{1,40} = )?[rfbu]{0,2}(?:'[^']{0,1000}'|\"[^\"]{0,1000}\")[,)]{0,3}\s*$)"
)
"""A statement that raises, logs or holds a message, as tracebacks and listings show it."""
_HELP = re.compile(r"\s*-{1,2}[a-z][\w-]*[ ,=]|\s{20,}[A-Za-z]")
_LOW = frozenset({"VERBOSE", "DEBUG", "INFO", "V", "D", "I"})


def is_code(message: str, below_frame: bool) -> bool:
    """Whether a message is source code or a help text.

    Of the source lines of a traceback only an `assert` says what failed.
    """
    if below_frame and message.startswith("    "):
        return not message.lstrip().startswith("assert ")
    return _SOURCE.match(message) is not None or _HELP.match(message) is not None


def is_low(level: str) -> bool:
    """Whether a server says at this level what is no failure; "" where a line has none."""
    return level in _LOW
