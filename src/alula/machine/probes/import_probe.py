"""Import each package that serves models, and say which copies of shared libraries came with it.

Runs in the examined environment: standard library only, one line of JSON at the end.
"""

import importlib
import importlib.util
import json
import re
from pathlib import Path
from typing import Any

PACKAGES = ("torch", "triton", "sgl_kernel", "flashinfer", "flash_attn", "sglang", "vllm")
LIBRARIES = re.compile(r"(/\S*/lib(?:nccl|cudart|cublas|cudnn|nvrtc|torch_cuda|c10)\.so\S*)")


def loaded_libraries() -> list[str]:
    """CUDA's and torch's libraries in this process, wherever they came from."""
    try:
        return sorted(set(LIBRARIES.findall(Path("/proc/self/maps").read_text())))
    except OSError:
        return []


def main() -> None:
    """Import what is there."""
    findings: list[str] = []
    measured: dict[str, Any] = {}
    parts: dict[str, str] = {}
    for name in PACKAGES:
        if importlib.util.find_spec(name) is None:
            continue
        try:
            module = importlib.import_module(name)
        except BaseException as error:  # what stops an import may be anything
            parts[name] = f"{type(error).__name__}: {error}"[:500]
            findings.append(f"import {name}: {parts[name]}")
        else:
            parts[name] = ""
            measured[name] = str(getattr(module, "__version__", "imported"))
    measured["libraries"] = loaded_libraries()
    print(json.dumps({"findings": findings, "measured": measured, "parts": parts}))


if __name__ == "__main__":
    main()
