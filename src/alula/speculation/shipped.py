"""The drafters that come with alula."""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).parent / "drafters"


def shipped(model: str) -> Path | None:
    """The drafter made for the built-in model of this name, None where there is none."""
    folder = FOLDER / model
    is_one = folder.parent == FOLDER and folder.name == model
    return folder if is_one and (folder / "config.json").is_file() else None


def called(drafter: Path) -> str:
    """What to call a drafter in a message."""
    if drafter.parent == FOLDER:
        return f"the drafter that comes with {drafter.name}"
    return f"the drafter {drafter}"
