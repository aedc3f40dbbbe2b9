"""What a saved report leaves out: who and where its owner is, and every key.

Facts about the machine stay: names of GPUs, bus ids, versions, paths below a home folder.
"""

from __future__ import annotations

import getpass
import re
import socket
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_SLASH = r"(?:/|\\|%2F|%5C){1,4}"
"""As written in paths of either kind, in text that escapes them, and in addresses."""
_HOME = re.compile(rf"(?i)(?:\b[a-z](?::|%3A))?{_SLASH}(?:home|users){_SLASH}[^/\\\s\"':;,%]+")
_SECRET_NAME = (
    r"(?:[A-Za-z0-9_.-]{0,60}[_-])?"
    r"(?:token|secret|(?:pg|my|db)?pass(?:word|wd|phrase)|pwd"
    r"|(?:api|access|secret|private|auth)[_-]?key|signature|credentials?)"
)
_VALUE = r"(?:\"[^\"]{0,400}\"|'[^']{0,400}'|[\"']?[^\s\"',;&]+)"
"""Bounded, as every pattern here has to be: reports hold mangled names of thousands of letters."""
_RULES: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"\b(?:GPU|MIG)-[0-9a-fA-F]{8}-[0-9a-fA-F-]{10,}"), "<uuid>"),
    (re.compile(r"\b[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\b"), "<uuid>"),
    (re.compile(r"(?<=://)[^/\s@]{1,256}@"), ""),
    (re.compile(rf"(?i)(?<!\w)({_SECRET_NAME}[\"']?\s*[=:]\s*)\[?{_VALUE}"), r"\1<secret>"),
    (re.compile(rf"(?i)(--{_SECRET_NAME}\s+){_VALUE}"), r"\1<secret>"),
    (re.compile(r"(?i)\b(bearer|basic)\s+[\w.+/=~-]{8,}"), r"\1 <secret>"),
    (
        re.compile(
            r"\b(?:hf_|[sr]k[-_]|gh[pousr]_|github_pat_|glpat-|xox[abprs]-|AKIA|ASIA|AIza|ya29\.|npm_"
            r"|gsk_|r8_|dop_v1_|nvapi-|pypi-|eyJ)[\w.-]{12,}"
        ),
        "<secret>",
    ),
    (re.compile(r"\b[0-9a-fA-F]{32,}\b"), "<secret>"),
    (re.compile(r"(?<![\w.+-])[\w.+-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63}){1,8}"), "<address>"),
    (re.compile(r"(?<![\w:-])(?:[0-9a-fA-F]{2}[:-]){5}[0-9a-fA-F]{2}(?![\w:-])"), "<address>"),
    (re.compile(r"(?<![\w.])(?:[0-9a-fA-F]{4}\.){2}[0-9a-fA-F]{4}(?![\w.])"), "<address>"),
    (re.compile(r"(?i)(?<![\w:])::ffff:\d{1,3}(?:\.\d{1,3}){3}(?![\w.])"), "<address>"),
    (re.compile(r"(?<![\w:.])(?:[0-9a-fA-F]{1,4}:){4,7}[0-9a-fA-F]{1,4}(?![\w:])"), "<address>"),
    (
        re.compile(
            r"(?<![\w:])[0-9a-fA-F]{0,4}(?::[0-9a-fA-F]{1,4})*::[0-9a-fA-F:]*[0-9a-fA-F](?![\w:])"
        ),
        "<address>",
    ),
    (re.compile(r"(?i)\b((?:serial(?:[ _-]?(?:no|number))?|s/n)\s*[=:#]\s*)\S+"), r"\1<serial>"),
)
_IPV4 = re.compile(r"(?<![\w.])(?:\d{1,3}\.){3}\d{1,3}(?![\w.])")
_VERSION = re.compile(r"(?<![\w.])\d+(?:\.\d+){3}(?![\w.])")
_PINNED = re.compile(r"[=<>!~]=?\s*(\d+(?:\.\d+){3})")
_EMPTIED = {"uuid", "serial", "hostname", "user", "username"}
_SECRET_KEY = re.compile(rf"(?i){_SECRET_NAME}|authorization")
_SHORTEST_NAME = 3


@dataclass(frozen=True)
class Redactor:
    """Takes what is private out of plain values."""

    home: str
    names: Mapping[str, str]
    """Words that name the owner, and what stands for them."""
    versions: frozenset[str] = frozenset()
    """Versions of four numbers, which look like addresses and are none."""

    def clean(self, value: Any) -> Any:
        """The same value without what is private, keys of objects included."""
        match value:
            case str():
                return self.text(value)
            case Mapping():
                return {self._key(str(k)): self._field(str(k), item) for k, item in value.items()}
            case list() | tuple():
                return [self.clean(item) for item in value]
        return value

    def text(self, text: str) -> str:
        """One text without what is private."""
        text = self._without_patterns(text)
        # The longest first: a host's name may begin with its owner's.
        for name, instead in sorted(self.names.items(), key=lambda item: -len(item[0])):
            text = re.sub(rf"(?i)(?<![A-Za-z0-9]){re.escape(name)}(?![A-Za-z0-9])", instead, text)
        return text

    def _key(self, text: str) -> str:
        """A key; one that is an identifier is the report's own word, whoever is called so too.

        It may be a key of another kind all the same.
        """
        return self._without_patterns(text) if text.isidentifier() else self.text(text)

    def _without_patterns(self, text: str) -> str:
        if len(self.home) > 1:
            text = re.sub(rf"{re.escape(self.home)}(?![\w.-])", "~", text)
        text = _HOME.sub("~", text)
        for pattern, instead in _RULES:
            text = pattern.sub(instead, text)
        return _IPV4.sub(self._address, text)

    def _address(self, found: re.Match[str]) -> str:
        return found[0] if found[0] in self.versions else "<address>"

    def _field(self, key: str, value: Any) -> Any:
        if isinstance(value, str) and value:
            if key.lower() in _EMPTIED:
                return ""
            if _SECRET_KEY.fullmatch(key):
                return "<secret>"
        return self.clean(value)


def redacted(report: Mapping[str, Any]) -> dict[str, Any]:
    """A report without what is private of this machine's owner."""
    software = report.get("software", {})
    texts = [*software.get("packages", {}).values()]
    pins = [requirement["text"] for requirement in software.get("requirements", ())]
    versions = {v for text in texts for v in _VERSION.findall(text)}
    versions |= {v for text in pins for v in _PINNED.findall(text)}
    cleaned: dict[str, Any] = own_redactor(frozenset(versions)).clean(report)
    return cleaned


def own_redactor(versions: frozenset[str] = frozenset()) -> Redactor:
    """A redactor that knows this machine's host name, user and home.

    Names that are words of everybody's (root, localhost) name nobody and stay.
    """
    names: dict[str, str] = {}
    with suppress(OSError, KeyError, ImportError):
        names[getpass.getuser()] = "<user>"
    host = socket.gethostname()
    names[host] = names[host.partition(".")[0]] = "<host>"
    common = {"root", "localhost", "user", "ubuntu", "docker", "nvidia", "python", "torch", "cuda"}
    kept = {n: i for n, i in names.items() if len(n) >= _SHORTEST_NAME and n.lower() not in common}
    home = ""
    with suppress(RuntimeError):  # there may be none
        home = str(Path.home())
    return Redactor(home, kept, versions)
