"""Environments on disk for tests: packages with records and binaries, and traps."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

SITE = "lib/python3.12/site-packages"


def make_environment(prefix: Path) -> Path:
    """An empty virtual environment; what is given back is its site-packages."""
    site = prefix / SITE
    site.mkdir(parents=True)
    (prefix / "pyvenv.cfg").write_text("home = /usr/bin\nversion = 3.12.4\n")
    return site


def install(
    site: Path,
    name: str,
    version: str,
    files: Mapping[str, bytes | str] | None = None,
    requires: Sequence[str] = (),
    editable: Path | None = None,
) -> None:
    """One package with its files and its RECORD."""
    info = site / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir()
    headers = [f"Name: {name}", f"Version: {version}", *(f"Requires-Dist: {r}" for r in requires)]
    (info / "METADATA").write_text("Metadata-Version: 2.4\n" + "\n".join(headers) + "\n\ntext\n")
    for path, content in (files or {}).items():
        target = site / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content.encode() if isinstance(content, str) else content)
    rows = [f"{path},," for path in (files or {})]
    (info / "RECORD").write_text("\n".join([*rows, f"{info.name}/METADATA,,"]) + "\n")
    if editable is not None:
        origin = {"url": editable.as_uri(), "dir_info": {"editable": True}}
        (info / "direct_url.json").write_text(json.dumps(origin))


def set_traps(prefix: Path) -> Path:
    """Everything that would run if code of the environment ran; the file that would then appear."""
    sprung = prefix / "sprung"
    site = prefix / SITE
    code = f"open({str(sprung)!r}, 'a').close()"
    (site / "trap.pth").write_text(f"import sys; {code}\n")
    (site / "sitecustomize.py").write_text(code)
    (site / "usercustomize.py").write_text(code)
    (site / "torch").mkdir(exist_ok=True)
    (site / "torch/__init__.py").write_text(code)
    (prefix / "bin").mkdir(exist_ok=True)
    for tool in ("python", "python3", "nvcc", "ptxas", "nvidia-smi", "ldconfig"):
        (prefix / "bin" / tool).write_text(f"#!/bin/sh\ntouch {sprung}\n")
        (prefix / "bin" / tool).chmod(0o755)
    return sprung
