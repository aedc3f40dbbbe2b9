"""All-reduce between two processes over gloo on the CPU, small and large, against what it must be.

Runs in the examined environment: nothing of alula is imported, one line of JSON at the end.
"""

import importlib
import json
import os
import subprocess
import sys
import tempfile
from typing import Any

RANKS = 2
ELEMENTS = (7, 7168, 1 << 20)


def run_rank(rank: int, meeting: str) -> None:
    """One rank: whole numbers, so that the sum is exact."""
    torch: Any = importlib.import_module("torch")
    importlib.import_module("torch.distributed")
    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{meeting}", rank=rank, world_size=RANKS
    )
    parts = {}
    for size in ELEMENTS:
        data = torch.arange(size, dtype=torch.float32) % 11 + rank
        torch.distributed.all_reduce(data)
        wanted = RANKS * (torch.arange(size, dtype=torch.float32) % 11) + sum(range(RANKS))
        right = torch.equal(data, wanted)
        name = f"gloo, {RANKS} ranks on the CPU, {4 * size} bytes"
        parts[name] = "" if right else f"rank {rank} holds a wrong sum"
    print(json.dumps(parts), flush=True)
    torch.distributed.destroy_process_group()


def main() -> None:
    """Start the ranks and gather what they found."""
    with tempfile.TemporaryDirectory() as folder:
        # Nothing but this machine itself is listened on.
        environ = {**os.environ, "GLOO_SOCKET_IFNAME": "lo"}
        command = [sys.executable, "-I", __file__]
        ranks = [
            subprocess.Popen(
                [*command, str(rank), f"{folder}/meeting"], stdout=subprocess.PIPE, env=environ
            )
            for rank in range(RANKS)
        ]
        said = [rank.communicate()[0].decode("utf-8", "replace").splitlines() for rank in ranks]
    parts: dict[str, str] = {}
    findings: list[str] = []
    for rank, lines in enumerate(said):
        try:
            found = json.loads(lines[-1])
        except (IndexError, ValueError):
            findings.append(f"rank {rank} ended with {ranks[rank].returncode} and no answer")
            continue
        parts |= {name: parts.get(name) or wrong for name, wrong in found.items()}
    findings += [f"{part}: {wrong}" for part, wrong in parts.items() if wrong]
    print(json.dumps({"findings": findings, "measured": {}, "parts": parts}))


if __name__ == "__main__":
    if len(sys.argv) > 1:
        run_rank(int(sys.argv[1]), sys.argv[2])
    else:
        main()
