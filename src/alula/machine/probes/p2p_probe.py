"""Write a pattern to a peer and read it back from both sides, for every pair of visible GPUs.

The driver may report access that does not work: data that comes back wrong is worse than none.
Runs in the examined environment: nothing of alula is imported, one line of JSON at the end.
"""

import importlib
import json
import time
from typing import Any

BYTES = 64 << 20


def copied_well(torch: Any, first: int, second: int) -> tuple[str | None, float]:
    """Copy a pattern there and back; what is wrong with it, and gigabytes a second one way."""
    words = BYTES // 4
    pattern = torch.arange(words, dtype=torch.int32) * 40503 + 7 * first + 13 * second
    here = pattern.to(f"cuda:{first}")
    there = torch.zeros(words, dtype=torch.int32, device=f"cuda:{second}")
    there.copy_(here)
    torch.cuda.synchronize(second)
    if not torch.equal(there.cpu(), pattern):
        return "what was written to the peer is not what it reads", 0.0
    back = torch.zeros(words, dtype=torch.int32, device=f"cuda:{first}")
    back.copy_(there)
    torch.cuda.synchronize(first)
    if not torch.equal(back.cpu(), pattern):
        return "what was read back from the peer is not what was written", 0.0
    return None, rate(torch, here, there)


def rate(torch: Any, here: Any, there: Any) -> float:
    """Gigabytes a second from one GPU to another."""
    repeats = 8
    torch.cuda.synchronize(here.device)
    torch.cuda.synchronize(there.device)
    start = time.perf_counter()
    for _ in range(repeats):
        there.copy_(here)
    torch.cuda.synchronize(here.device)
    torch.cuda.synchronize(there.device)
    return repeats * BYTES / (time.perf_counter() - start) / 1e9


def main() -> None:
    """Every pair, both ways."""
    torch: Any = importlib.import_module("torch")
    findings: list[str] = []
    measured: dict[str, str] = {}
    parts: dict[str, str] = {}
    count = torch.cuda.device_count()
    for first in range(count):
        for second in range(count):
            if first == second:
                continue
            pair = f"{first} to {second}"
            able = torch.cuda.can_device_access_peer(first, second)
            try:
                wrong, speed = copied_well(torch, first, second)
            except Exception as error:
                wrong, speed = f"{type(error).__name__}: {error}"[:500], 0.0
            parts[f"GPU {pair}"] = wrong or ("" if able else "copies go through the host")
            if wrong:
                findings.append(f"GPU {pair}: {wrong}")
            else:
                way = "peer access" if able else "staged through the host"
                measured[f"GPU {pair}"] = f"{speed:.1f} GB/s, {way}"
    print(json.dumps({"findings": findings, "measured": measured, "parts": parts}))


if __name__ == "__main__":
    main()
