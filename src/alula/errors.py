"""What alula says when it cannot go on: what happened, why, and what to do about it."""

from __future__ import annotations

from typing import ClassVar


class AlulaError(Exception):
    """A failure a person can act on.

    The command line prints the three parts on a line each and exits with `exit_code`.
    """

    exit_code: ClassVar[int] = 1

    def __init__(self, what: str, why: str, fix: str) -> None:
        super().__init__(f"{what}: {why}")
        self.what = what
        self.why = why
        self.fix = fix


class UsageError(AlulaError):
    """A parameter or an input that alula does not accept."""

    exit_code = 2


class LengthError(UsageError):
    """A prompt that leaves no room for an answer."""


class ModelError(AlulaError):
    """A model or a drafter that is missing, damaged, foreign or does not fit."""

    exit_code = 5


class MachineError(AlulaError):
    """The machine stands in the way: no network, a folder not writable, a disk full."""

    exit_code = 6


class ResourceError(AlulaError):
    """Too little memory for what was asked."""

    exit_code = 7


class ShortageError(ResourceError):
    """Memory that ran out on the way, whoever asked for it last."""


class PackageError(AlulaError):
    """A package or an index that is missing, damaged, foreign or not what was promised."""

    exit_code = 8
