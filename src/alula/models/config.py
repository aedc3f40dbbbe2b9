"""The JSON files that describe a model in Hugging Face layout."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from alula.errors import ModelError


def read_json(path: Path) -> Mapping[str, Any]:
    """A JSON object from a file; ModelError where it is none."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        why = error.strerror or str(error)
    except (ValueError, RecursionError) as error:
        why = f"it is not JSON: {error}"
    else:
        if isinstance(content, dict):
            return content
        why = "it holds no JSON object"
    raise ModelError(f"cannot read {path}", why, "use the folder as the model's maker published it")
