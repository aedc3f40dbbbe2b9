"""One launch of attention on a GPU, in the chosen tile and in others, all of the same bits.

    python benchmarks/gpu_attention.py [--only 8b,smollm2] [--segment 128] [--out FILE]

A graph of 32 launches, one behind the other, over pools that do not fit the cache together.
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812
import triton.language as tl
from torch import Tensor

from alula.bench.kernels import PAGE, PAST_CACHE, paged
from alula.bench.random_weights import LLAMA_8B, SMOLLM2
from alula.bench.timing import GraphClock, race, read_limit
from alula.ops.attention import Heads
from alula.ops.rows import Rows
from alula.ops.triton import segments
from alula.ops.triton.attention import Tile, choose, plan
from alula.ops.triton.linear import machine
from alula.shapes.decoder import DecoderShape

OUT = Path(__file__).parent / "results" / "gpu_attention.json"
DEVICE = torch.device("cuda")
SHAPES = {"8b": LLAMA_8B, "smollm2": SMOLLM2}
LAUNCHES = 32
SPREADS = (1, 2, 4, 8, 16, 32)
MOST_PROGRAMS = 600
"""Beyond as many, what the programs of spread tiles leave for each other takes gigabytes."""
DEPTH = 4
MOST_KEYS = 8192


class Case(NamedTuple):
    """A launch by name, the pages it needs, and the bytes of keys and values it has to read."""

    name: str
    rows: Rows
    pages: int
    read: int


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="8b,smollm2")
    parser.add_argument("--segment", type=int, default=segments.SEGMENT_KEYS)
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args()
    segments.SEGMENT_KEYS, segments.UNIT = options.segment, tl.constexpr(options.segment)
    limit = read_limit(DEVICE)
    print(f"read bandwidth {limit:.2f} TB/s, short segments of {options.segment} keys", flush=True)
    found = []
    with torch.inference_mode():
        for name in options.only.split(","):
            for case in cases(SHAPES[name]):
                found.append(timed(name, SHAPES[name], case, limit))
                torch.cuda.empty_cache()
    write(options.out, {"segment": options.segment}, {"read limit TB/s": limit, "launches": found})


def cases(shape: DecoderShape) -> Iterator[Case]:
    """Plain steps, chains and trees of several sequences, and a prompt."""
    of_key = 2 * shape.kv_heads * shape.head_dim * 2
    for context, batch in itertools.product((512, 4096), (1, 8, 32)):
        for rows_each, tail in ((1, 0), (4, 0), (33, DEPTH + 1)):
            kind = f"tree of {rows_each}" if tail else f"{rows_each} rows"
            rows = paged(batch, context, DEVICE, rows_each, tail)
            yield case(f"{context} x {batch}, {kind}", rows, of_key * context * batch)
    yield case("prompt of 2048", paged(1, 1, DEVICE, 2048), of_key * 2048)


def case(name: str, rows: Rows, read: int) -> Case:
    """With page tables that have room for more, as an engine's have."""
    pages, width = rows.page_table.numel(), rows.page_table.shape[1]
    table = F.pad(rows.page_table, (0, MOST_KEYS // PAGE - width))
    return Case(name, rows._replace(page_table=table), pages, read)


def tiles(rows: Rows, heads: Heads, q: Tensor) -> list[Tile]:
    """The chosen one first."""
    chosen = choose(rows, PAGE, heads, q, *machine(DEVICE))
    programs = len(rows.last) // chosen.rows * heads.kv
    spreads = SPREADS if programs <= MOST_PROGRAMS else (1,)
    others = [chosen._replace(spread=spread) for spread in spreads]
    by_program = itertools.product((2, 4, 8), (1, 2, 3))
    others += [chosen._replace(warps=warps, stages=stages) for warps, stages in by_program]
    group = heads.query // heads.kv
    if chosen.lanes > 16:
        for lanes, warps in itertools.product((16, 32, 64, 128), (4, 8)):
            others.append(Tile(lanes // group, lanes, 1, warps))
    return list(dict.fromkeys([chosen, *others]))


def timed(name: str, shape: DecoderShape, case: Case, limit: float) -> dict[str, Any]:
    """Microseconds of a launch in each tile; all have to give the same bits."""
    heads, d = Heads(shape.heads, shape.kv_heads), shape.head_dim
    rows, pages = case.rows, case.pages
    size = 2 * pages * heads.kv * PAGE * d * 2
    cache = torch.cuda.get_device_properties(DEVICE).L2_cache_size
    copies = min(LAUNCHES, int(PAST_CACHE * cache / size) + 2)
    pools = torch.randn(copies, 2, pages, heads.kv, PAGE, d, device=DEVICE, dtype=torch.bfloat16)
    q = torch.randn(len(rows.last), heads.query, d, device=DEVICE, dtype=torch.bfloat16)
    made = plan(rows, PAGE, heads)

    def attend(tile: Tile, number: int) -> Tensor:
        keys, values = pools[number % copies]
        return made.attend_in(tile, q, keys, values, d**-0.5)

    all_tiles = tiles(rows, heads, q)
    expected = attend(all_tiles[0], 0)
    clocks: dict[Tile, Callable[[], float]] = {}
    for tile in all_tiles:
        assert torch.equal(attend(tile, 0), expected), f"other bits in {tile}"

        def launch(tile: Tile = tile) -> None:
            for number in range(LAUNCHES):
                attend(tile, number)

        clocks[tile] = GraphClock(launch, LAUNCHES)
    times = {tile: took.median for tile, took in race(clocks).items()}
    best = min(times, key=times.__getitem__)
    chosen = all_tiles[0]
    share = case.read / times[chosen] / 1e6 / limit
    print(
        f"{name} {case.name}: {times[chosen]:.2f} us in {short(chosen)}, {share:.0%} of the limit; "
        f"best {times[best]:.2f} in {short(best)}\n    "
        + ", ".join(f"{short(tile)} {us:.2f}" for tile, us in times.items()),
        flush=True,
    )
    return {
        "shape": name,
        "launch": case.name,
        "us": times[chosen],
        "share of the limit": share,
        "tiles": [{**tile._asdict(), "us": us} for tile, us in times.items()],
    }


def short(tile: Tile) -> str:
    """Rows by lanes, programs, warps, stages."""
    return f"{tile.rows}x{tile.lanes}/{tile.spread}w{tile.warps}s{tile.stages}"


def write(path: Path, settings: dict[str, Any], found: dict[str, Any]) -> None:
    """With all about the machine where psutil is there to ask, else the figures alone."""
    try:
        from alula.bench import results
    except ModuleNotFoundError as error:
        print(f"{error}: the machine is left out of {path}")
        path.write_text(json.dumps({"settings": settings, "results": found}, indent=2) + "\n")
        return
    packages = ("alula", "torch", "triton")
    results.write(path, results.record("gpu_attention", settings, found, packages))


if __name__ == "__main__":
    main()
