"""Logs of servers, written for tests around the phrase of a failure."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

FRAMES = {
    "symm-mem": "sglang/srt/distributed/device_communicators/torch_symm_mem.py",
    "flashinfer": "flashinfer/jit/comm.py",
    "buffers": "sglang/srt/distributed/device_communicators/custom_all_reduce.py",
    "tokenizer": "sglang/srt/tokenizer/merges.py",
}
_STAMP = "[2026-02-11 10:{:02d}:{:02d} TP{}]"


def stamp(second: int, rank: int) -> str:
    """What SGLang writes before a line."""
    return _STAMP.format(second // 60 % 60, second % 60, rank)


def starting(ranks: int = 4, phase: str = "distributed") -> Iterator[str]:
    """A start, up to a phase, its ranks interleaved."""
    yield "[2026-02-11 10:00:00] server_args=ServerArgs(model_path='m', tp_size=4)"
    for name, words in (
        ("distributed", "Init torch distributed begin."),
        ("weights", "Load weight begin. avail mem=94.2 GB"),
        ("kv", "Load weight end. type=KimiK25, avail mem=17.9 GB"),
        ("capture", "Capture cuda graph begin. This can take up to several minutes."),
    ):
        yield from (f"{stamp(5, rank)} {words}" for rank in range(ranks))
        if name == phase:
            return


def failing(phrase: str, frame: str = "", phase: str = "distributed", ranks: int = 4) -> str:
    """A start whose ranks fail one after the other, with wrappers around and behind."""
    lines = list(starting(ranks, phase))
    lines.append(f"{stamp(10, 1)} NVLink is absent, using PCIe")
    for rank in (2, 0, 3, 1)[:ranks]:
        lines.append(
            f"{stamp(20 + rank, rank)} Scheduler hit an exception: "
            "Traceback (most recent call last):"
        )
        lines.append('  File "/opt/sglang/srt/managers/scheduler.py", line 2800, in run_scheduler')
        if frame:
            lines.append(f'  File "/opt/{FRAMES[frame]}", line 60, in build')
            lines.append("    return make(majors)")
        lines.append(phrase)
        lines.append("")
    lines.append("[2026-02-11 10:00:40] Received sigquit from a child process. It usually means")
    lines.append(
        "[2026-02-11 10:00:41] Rank 0 scheduler is dead. Please check if there are relevant logs."
    )
    return "\n".join(lines) + "\n"


def write(folder: Path, text: str, name: str = "server.log") -> Path:
    """A log file."""
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path
