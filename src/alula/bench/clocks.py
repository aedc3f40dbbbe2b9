"""How fast a GPU's clocks run: a figure without them cannot be compared with another."""

from __future__ import annotations

import subprocess

_ASKED = ("clocks.sm", "clocks.mem", "clocks.max.sm", "clocks.max.mem")
_SECONDS = 20


def clocks() -> dict[str, int] | None:
    """Clocks of the first GPU in MHz, to be asked for right after work; None where nothing tells.

    By nvidia-smi, which comes with the driver.
    """
    command = ["nvidia-smi", f"--query-gpu={','.join(_ASKED)}", "--format=csv,noheader,nounits"]
    try:
        ran = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return read(ran.stdout) if ran.returncode == 0 else None


def read(said: str) -> dict[str, int] | None:
    """What nvidia-smi says of the first GPU; a clock that it does not know is left out."""
    values = said.partition("\n")[0].split(",")
    found = {
        name: int(value)
        for name, value in zip(_ASKED, values, strict=False)
        if value.strip().isdecimal()
    }
    return found or None
