"""Compiles the kernels for architectures that are not here, as their wrappers would launch them.

Run as a program, since Triton must be imported without its interpreter. Prints a line of JSON for
every compiled kernel. The tensors are on torch's meta device: they have shapes and no memory.

    python kernel_proof.py all|sample|"too large" 80 90 120
"""

from __future__ import annotations

import itertools
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
import triton
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from alula.ops import triton as forms
from alula.ops.advance import Mailbox
from alula.ops.attention import Heads
from alula.ops.catch_up import Committed
from alula.ops.expand import Drafts, Growth, Roots, candidates
from alula.ops.layer import Store, Stream
from alula.ops.linear import DenseWeight
from alula.ops.lines import LineState
from alula.ops.norm import Norm, Normed
from alula.ops.pair import PairWeights
from alula.ops.rope import Rotation
from alula.ops.rows import Rows
from alula.ops.sample import LineSettings, Wants
from alula.ops.store import HeadNorms, places
from alula.ops.triton import tiles
from alula.ops.triton.attention import choose
from alula.ops.triton.layer import JOINED_ROWS
from alula.ops.triton.linear import TiledWeight
from alula.ops.triton.tiles import Bucket, Tile, table
from alula.ops.walk import Path as Accepted
from alula.sampling.noise import gumbel


class Model(NamedTuple):
    hidden: int
    inner: int
    heads: Heads
    head_dim: int
    vocabulary: int
    norms: bool


MODELS = {
    "smollm2": Model(576, 1536, Heads(9, 3), 64, 49152, norms=False),
    "llama 8b": Model(4096, 14336, Heads(32, 8), 128, 128256, norms=False),
    "qwen3 8b": Model(4096, 12288, Heads(32, 8), 128, 151936, norms=True),
    "qwen2 0.5b": Model(896, 4864, Heads(14, 2), 64, 151936, norms=False),
    "odd": Model(1008, 2512, Heads(10, 5), 96, 1001, norms=True),
}
SAMPLE = ("smollm2",)
INEXACT = r"\b(?:fma\S*|\w+\.(?:approx|full)\S*|\w+\S*\.ftz\S*)"
"""Operations on floats that round otherwise than IEEE 754 has it, or twice at once."""
TOO_LARGE = Tile(16, 64, 256, warps=4, stages=4)
PROCESSORS = 100


class _Driver:
    """Says that there is a GPU of some architecture, and can do nothing else."""

    def __init__(self, architecture: int) -> None:
        self._target = GPUTarget("cuda", architecture, 32)

    def get_current_target(self) -> GPUTarget:
        return self._target

    def get_current_device(self) -> int:
        return self._target.arch

    def get_current_stream(self, _device: int) -> int:
        return 0


@contextmanager
def compiling(architecture: int) -> Iterator[list[Any]]:
    """Compile what is launched instead of running it; yields the list of what was compiled."""
    compiled: list[Any] = []
    run = JITFunction.run

    def compile_only(self: JITFunction, *args: Any, **kwargs: Any) -> Any:
        kernel = run(self, *args, **{**kwargs, "warmup": True})
        if all(kernel is not known for known in compiled):
            compiled.append(kernel)
        return kernel

    driver.set_active(_Driver(architecture))
    JITFunction.run = compile_only
    try:
        yield compiled
    finally:
        JITFunction.run = run


def meta(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def launches(model: Model, dtype: torch.dtype, architecture: int) -> Iterator[Callable[[], Any]]:
    """Every kind of launch that a model makes."""
    heads, d = model.heads, model.head_dim
    wide = (heads.query + 2 * heads.kv) * d
    sizes = [
        (wide, model.hidden),
        (model.hidden, heads.query * d),
        (2 * model.inner, model.hidden),
        (model.hidden, model.inner),
        (model.vocabulary, model.hidden),
    ]
    for outputs, inner in sizes:
        yield from linears(outputs, inner, dtype, architecture)
    yield lambda: forms.silu_and_mul(meta(8, 2 * model.inner, dtype=dtype))
    x, norm = meta(8, model.hidden, dtype=dtype), meta(model.hidden, dtype=torch.float32)
    yield lambda: forms.rms_norm(x, norm, 1e-5)
    yield lambda: forms.add_rms_norm(x, x, norm, 1e-5)
    yield from layer_launches(model, dtype, architecture)
    yield from heads_launches(model, dtype, architecture)
    yield from training_launches(model, dtype)
    yield from round_launches(model, dtype)
    yield from draft_launches(model, dtype)


def linears(
    outputs: int, inner: int, dtype: torch.dtype, architecture: int
) -> Iterator[Callable[[], Any]]:
    weight = tiled(outputs, inner, dtype, architecture)
    for bucket in weight.table:
        for rows, out in itertools.product((bucket.rows - 1, bucket.rows), {dtype, torch.float32}):
            x = meta(rows, inner, dtype=dtype)
            yield lambda x=x, out=out: weight.multiply(x, out)


def layer_launches(
    model: Model, dtype: torch.dtype, architecture: int
) -> Iterator[Callable[[], Any]]:
    """A layer's linears joined with what surrounds them, at every number of rows that they take."""
    heads, d, h = model.heads, model.head_dim, model.hidden
    norm = Norm(meta(h, dtype=torch.float32), 1e-5)
    ids, table_ = meta(8, dtype=torch.int64), meta(model.vocabulary, h, dtype=dtype)
    yield lambda: forms.embed(ids, table_, dtype, norm, 60)
    count = (heads.query + 2 * heads.kv) * d
    qkv, out = tiled(count, h, dtype, architecture), tiled(h, heads.query * d, dtype, architecture)
    gate_up = tiled(2 * model.inner, h, dtype, architecture)
    pool = meta(64, heads.kv, 32, d, dtype=dtype)
    for rows in (*(n for n in tiles.ROWS if n <= JOINED_ROWS), JOINED_ROWS + 1):
        x, inner = meta(rows, h, dtype=dtype), meta(rows, heads.query * d, dtype=dtype)
        squares, room = meta(rows, dtype=torch.int64), meta(2, rows, dtype=torch.int64)
        normed = Normed(x, squares, 1e-5)
        rotation = Rotation(*(meta(rows, 1, d, dtype=torch.float32) for _ in range(2)))
        store = Store(pool, pool, places(meta(rows, dtype=torch.int64), 32))
        yield lambda normed=normed: forms.gate(normed, gate_up)
        stream = Stream(x, normed, room)
        yield lambda at=(stream, inner): forms.add(*at, out, norm)
        yield lambda at=(normed, rotation, store): forms.project_heads(
            at[0], qkv, heads, at[1], at[2]
        )


def tiled(outputs: int, inner: int, dtype: torch.dtype, architecture: int) -> TiledWeight:
    known = table(outputs, inner, dtype, divmod(architecture, 10), PROCESSORS)
    return TiledWeight(DenseWeight(meta(outputs, inner, dtype=dtype)), known)


def heads_launches(
    model: Model, dtype: torch.dtype, architecture: int
) -> Iterator[Callable[[], Any]]:
    heads, d = model.heads, model.head_dim
    pool = meta(64, heads.kv, 32, d, dtype=dtype)
    rotation = Rotation(*(meta(8, 1, d, dtype=torch.float32) for _ in range(2)))
    norms = HeadNorms(*(meta(d, dtype=torch.float32) for _ in range(2)), 1e-5)
    projected = meta(8, heads.query + 2 * heads.kv, d, dtype=dtype)
    slots = meta(8, dtype=torch.int64)
    yield lambda: forms.rotate_and_store(
        projected,
        heads,
        rotation,
        pool,
        pool,
        places(slots, 32),
        norms if model.norms else None,
    )
    q = meta(8, heads.query, d, dtype=dtype)
    yield lambda: forms.rotate(q, rotation)
    for count, sequences, tail in (
        (8, 8, None),
        (1, 1, None),
        (6, 1, None),
        (128, 1, None),
        (8, 1, meta(8, 5, dtype=slots.dtype)),
    ):
        many = meta(count, dtype=torch.int64)
        pages = meta(sequences, 16, dtype=torch.int64)
        rows = Rows(many, many, many, many, pages, many[:sequences], tail)
        tall = meta(count, heads.query, d, dtype=dtype)
        made = forms.plan(rows, 32, heads)
        for processors in (1, PROCESSORS):
            tile = choose(rows, 32, heads, tall, processors, divmod(architecture, 10))
            asked = (tile, tall, pool, pool, 1.0)
            yield lambda made=made, asked=asked: made.attend_in(*asked)


def round_launches(model: Model, dtype: torch.dtype) -> Iterator[Callable[[], Any]]:
    """What comes after the logits: sampling in both sizes of chunks, walk and commit."""
    for vocabulary, rows, filters in itertools.product((model.vocabulary,), (1, 40), range(3)):
        logits = meta(rows, vocabulary, dtype=torch.float32)
        asked = (logits, *indices(rows), settings(vocabulary))
        wants = Wants(noise=True, filters=filters, adjustments=filters > 0)
        yield lambda asked=asked, wants=wants: forms.sample(*asked, wants)
    for nodes in (0, 3, 32):
        tree = [meta(5, nodes + 1, dtype=torch.int64) for _ in range(3)]
        yield lambda tree=tree: forms.walk(tree[0][:, 1:], tree[1][:, 1:], tree[2])
    store = meta(4, 2, 64, model.heads.kv, 32, model.head_dim, dtype=dtype)
    integers = [meta(*shape, dtype=torch.int64) for shape in ((5, 16), (5,), (5, 5), (5,))]
    yield lambda: forms.commit(store, *integers)
    yield from bookkeeping_launches(model)


def bookkeeping_launches(model: Model) -> Iterator[Callable[[], Any]]:
    """What is before and behind the model in a round of fixed size."""
    angles = Rotation(*(meta(512, 1, model.head_dim, dtype=torch.float32) for _ in range(2)))
    at = meta(4, dtype=torch.int64)
    for nodes, depth, counted in ((0, 0, False), (3, 3, True), (32, 4, False)):
        state = line_state(nodes, model.vocabulary if counted else None)
        tail = nodes > depth
        yield lambda size=(nodes, depth), state=state, tail=tail: forms.prepare(
            at, state, angles, 32, *size, has_tail=tail
        )
        tree = [meta(4, nodes, dtype=torch.int64) for _ in range(2)]
        told = meta(4, 2, dtype=torch.int64)
        mailbox = Mailbox(meta(2, 4, nodes + 7, dtype=torch.int64), at)
        logits = meta(4 * (nodes + 1), model.vocabulary, dtype=torch.float32)
        asked = (logits, *indices(len(logits)), settings(model.vocabulary))
        for noise in (False, True):
            left = forms.find(*asked, Wants(noise=noise, filters=0, adjustments=False))
            for box in (None, mailbox):
                yield lambda state=state, left=left, tree=tree, told=told, box=box: forms.advance(
                    at, state, left, *tree, told, box
                )
        path = Accepted(*(meta(4, nodes + 1, dtype=torch.int64) for _ in range(2)), at)
        yield lambda state=state, path=path, told=told: forms.settle(at, state, path, told)


def line_state(nodes: int, vocabulary: int | None) -> LineState:
    columns = {"lengths": (), "limits": (), "history": (513,), "stop_ids": (16,)}
    columns |= {"page_table": (20,), "draft_tokens": (nodes,), "draft_parents": (nodes,)}
    counts = None if vocabulary is None else meta(8, vocabulary, dtype=torch.int32)
    integers = {name: meta(8, *shape, dtype=torch.int64) for name, shape in columns.items()}
    return LineState(**integers, output_counts=counts)


def draft_launches(model: Model, dtype: torch.dtype) -> Iterator[Callable[[], Any]]:
    """What a drafter does between its linears, for chains and for trees."""
    columns = [meta(*shape, dtype=torch.int64) for shape in ((8,), (8, 99), (5, 16), (5,), (5, 5))]
    lines, history, table, last, path = columns
    committed = Committed(last, history, table, last, path[:, :4], last)
    aux, kept = meta(20, model.hidden, dtype=dtype), meta(64, 3 * model.hidden, dtype=dtype)
    yield lambda: forms.catch_up((aux, aux, aux), committed, kept, 32)
    table_of, norm = (
        meta(model.vocabulary, model.hidden, dtype=dtype),
        meta(model.hidden, dtype=dtype),
    )
    frequencies = meta(model.head_dim // 2, dtype=torch.float32)
    for sources, norms_residual in ((None, False), (lines, True)):
        weights = PairWeights(table_of, norm, norm, 1e-5, frequencies, 1.0, norms_residual)
        asked = (meta(8, model.hidden, dtype=dtype), sources, lines, lines, weights)
        yield lambda asked=asked: forms.pair(*asked)
    temperatures = meta(8, dtype=torch.float32)
    roots = Roots(last, lines, lines, lines, temperatures, table)
    drafts = Drafts(*(meta(8, 32, dtype=torch.int64) for _ in range(2)))
    ids = meta(min(model.vocabulary, 32000), dtype=torch.int64)
    for (width, nodes), noise in itertools.product(((1, 3), (4, 32), (8, 64)), (None, gumbel)):
        growth = Growth(width, ids, 1.0, noise, 2048, 8, 32)
        yield lambda growth=growth, nodes=nodes: expand(roots, growth, nodes, drafts)


def expand(roots: Roots, growth: Growth, nodes: int, drafts: Drafts) -> None:
    """Three levels."""
    found, frontier = candidates(growth, 5, 3), None
    for rows in (5, 5 * growth.width):
        logits = meta(rows, len(growth.target_ids), dtype=torch.float32)
        frontier = forms.grow(logits, roots, growth, found, frontier)
    forms.finish(logits, roots, growth, found, frontier, nodes, drafts)


def training_launches(model: Model, dtype: torch.dtype) -> Iterator[Callable[[], Any]]:
    """What a drafter's loss takes."""
    logits, wanted = meta(8, 8192, dtype=dtype), meta(9, 8192, dtype=torch.float16)
    entries, column = meta(8, dtype=torch.int64), meta(8, dtype=torch.float32)
    whole = meta(8, model.vocabulary, dtype=torch.float32)
    part = meta(8192, dtype=torch.int64)
    yield lambda: forms.restrict(whole, part, torch.float16)
    yield lambda: forms.cross_entropy(logits, wanted, entries)
    yield lambda: forms.cross_entropy_gradient(logits, wanted, entries, column, column)
    inner, half = meta(8, 2 * model.inner, dtype=dtype), meta(8, model.inner, dtype=dtype)
    yield lambda: forms.silu_and_mul_gradient(inner, half)
    heads, d = model.heads, model.head_dim
    q, lse = meta(2, 4, heads.query, d, dtype=dtype), meta(2, heads.query, 4, dtype=torch.float32)
    k = meta(2, 4, heads.kv, d, dtype=dtype)
    yield lambda: forms.attend_own(q, k, k, q, lse, 0.125)
    yield lambda: forms.attend_own_gradient(q, q, k, k, q, lse, 0.125, q)


def indices(rows: int) -> tuple[torch.Tensor, ...]:
    """Lines, positions and paths."""
    return tuple(meta(*shape, dtype=torch.int64) for shape in ((rows,), (rows,), (rows, 4)))


def settings(vocabulary: int, lines: int = 8) -> LineSettings:
    column = meta(lines, dtype=torch.float32)
    integers = meta(lines, dtype=torch.int64)
    return LineSettings(
        temperature=column,
        top_k=integers,
        top_p=column,
        log_min_p=column,
        key=integers,
        repetition=column,
        presence=column,
        frequency=column,
        prompt_seen=meta(lines, vocabulary, dtype=torch.bool),
        output_counts=meta(lines, vocabulary, dtype=torch.int32),
        bias=meta(lines, vocabulary, dtype=torch.float32),
    )


def resources(cubin: bytes) -> dict[str, int]:
    """Registers, bytes of stack (where spills go) and of local memory, by the disassembler."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        said = subprocess.run(
            [knobs.nvidia.cuobjdump.path, "--dump-resource-usage", file.name],
            check=True,
            capture_output=True,
            text=True,
        ).stdout
    found = dict(re.findall(r"\b(REG|STACK|LOCAL):(\d+)", said))
    return {name.lower(): int(value) for name, value in found.items()}


def overlap(ptx: str) -> dict[str, Any]:
    """Whether it lets the next kernel begin before it waits, and how it reads until then."""
    before, wait, _ = ptx.partition("griddepcontrol.wait")
    return {
        "waits": bool(wait),
        "releases_first": "griddepcontrol.launch_dependents" in before,
        "reads_first": sorted(set(re.findall(r"ld\.global\S*", before))) if wait else [],
    }


def chosen(extent: str, architecture: int) -> Iterator[Callable[[], Any]]:
    """The launches that `extent` asks for."""
    if extent == "too large":
        yield from with_too_large_a_tile(architecture)
        return
    names, dtypes = SAMPLE, [torch.bfloat16]
    if extent == "all":
        names, dtypes = tuple(MODELS), [torch.bfloat16, torch.float16, torch.float32]
        known = tiles.read(tiles.FOLDER / tiles.file_name(divmod(architecture, 10)))
        for shape in known.measured:
            yield from linears(shape.outputs, shape.inner, torch.bfloat16, architecture)
    for name in names:
        for dtype in dtypes:
            yield from launches(MODELS[name], dtype, architecture)


def with_too_large_a_tile(architecture: int) -> Iterator[Callable[[], Any]]:
    """The linears of an architecture whose table has a measured tile that does not fit."""
    shape = {"outputs": 4096, "inner": 4096, "itemsize": 2}
    weight = {**shape, "buckets": [Bucket(16, TOO_LARGE)._asdict()]}
    with tempfile.TemporaryDirectory() as folder:
        tiles.FOLDER = Path(folder)
        path = tiles.FOLDER / tiles.file_name(divmod(architecture, 10))
        path.write_text(json.dumps({"classes": {}, "weights": [weight]}))
        yield from linears(4096, 4096, torch.bfloat16, architecture)


def main() -> None:
    extent, *architectures = sys.argv[1:]
    for architecture in map(int, architectures):
        with compiling(architecture) as compiled:
            for launch in chosen(extent, architecture):
                launch()
        for kernel in compiled:
            line = {
                "kernel": kernel.name,
                "architecture": architecture,
                "triton": triton.__version__,
                "shared": kernel.metadata.shared,
                "warps": kernel.metadata.num_warps,
                "instructions": kernel.asm["ptx"].count(";\n"),
                "inexact": sorted(set(re.findall(INEXACT, kernel.asm["ptx"]))),
                "fuses": kernel.metadata.enable_fp_fusion,
                **overlap(kernel.asm["ptx"]),
                **resources(kernel.asm["cubin"]),
            }
            print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
