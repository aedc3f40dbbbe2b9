"""All-reduce over all visible GPUs, small and large, eager and in a CUDA graph, against the CPU.

One process for each GPU. A bug may hide below some size, or in replays only, so both are tried.
Runs in the examined environment: nothing of alula is imported, one line of JSON at the end.
"""

import importlib
import json
import os
import socket
import subprocess
import sys
import time
from typing import Any

ELEMENTS = (7, 7168, 8 * 7168, 1 << 22)  # one decoded token of a large model is 7168
REPLAYS = 20


def rank_values(torch: Any, rank: int, size: int) -> Any:
    """Whole numbers so small that bfloat16 adds those of 16 ranks exactly in any order."""
    return (torch.arange(size) % 11 + rank % 5 + 1).to(torch.bfloat16)


def expected_sum(torch: Any, world: int, size: int) -> Any:
    """What every rank must hold, in fp32."""
    return sum(rank_values(torch, rank, size).float() for rank in range(world))


def eager(torch: Any, rank: int, size: int) -> tuple[Any, float | None]:
    """One all-reduce as it comes."""
    data = rank_values(torch, rank, size).cuda()
    torch.distributed.all_reduce(data)
    return data, None


def captured(torch: Any, rank: int, size: int) -> tuple[Any, float | None]:
    """One all-reduce in a graph, and microseconds a replay."""
    values = rank_values(torch, rank, size).cuda()
    data = values.clone()
    torch.distributed.all_reduce(data)  # connections are made outside the capture
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        data.copy_(values)
        torch.distributed.all_reduce(data)
    graph.replay()
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(REPLAYS):
        graph.replay()
    torch.cuda.synchronize()
    return data, (time.perf_counter() - start) / REPLAYS * 1e6


def run_rank(rank: int, world: int) -> None:
    """One rank of the collective."""
    torch: Any = importlib.import_module("torch")
    importlib.import_module("torch.distributed")
    torch.cuda.set_device(rank)
    torch.distributed.init_process_group("nccl", rank=rank, world_size=world)
    findings: list[str] = []
    measured: dict[str, str] = {}
    for size in ELEMENTS:
        wanted = expected_sum(torch, world, size).to(torch.bfloat16)
        for way in (eager, captured):
            name = f"{2 * size} bytes, {way.__name__}"
            try:
                found, micros = way(torch, rank, size)
                torch.cuda.synchronize()
            except Exception as error:
                findings.append(f"{name}: {type(error).__name__}: {error}"[:500])
                break
            if not torch.equal(found.cpu(), wanted):
                findings.append(f"{name}: rank {rank} holds a wrong sum")
            elif micros is not None:
                measured[name] = f"{micros:.1f} us"
    print(json.dumps({"findings": findings, "measured": measured}), flush=True)
    # A communicator that an error left behind may not come down again.
    os._exit(0)


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


def main() -> None:
    """Start the ranks and gather what they found."""
    torch: Any = importlib.import_module("torch")
    world = torch.cuda.device_count()
    environ = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    command = [sys.executable, "-I", __file__]
    ranks = [
        subprocess.Popen([*command, str(rank), str(world)], stdout=subprocess.PIPE, env=environ)
        for rank in range(world)
    ]
    findings: list[str] = []
    measured: dict[str, str] = {}
    for rank, process in enumerate(ranks):
        lines = process.communicate()[0].decode("utf-8", "replace").splitlines()
        try:
            answer = json.loads(lines[-1])
        except (IndexError, ValueError):
            findings.append(f"rank {rank} ended with {process.returncode} and no answer")
            continue
        findings += answer["findings"]
        measured = measured or answer["measured"]
    measured["NCCL"] = ".".join(map(str, torch.cuda.nccl.version()))
    print(json.dumps({"findings": findings, "measured": measured}))


if __name__ == "__main__":
    if len(sys.argv) > 1:
        run_rank(int(sys.argv[1]), int(sys.argv[2]))
    else:
        main()
