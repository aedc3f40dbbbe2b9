"""The same requests decoded in every way on a GPU: token ids and logits must be the same bits.

    python benchmarks/gpu_exactness.py MODEL [--tokens 32] [--shapes off,chain:5] [--out FILE]
    python benchmarks/gpu_exactness.py --combine PART... [--out FILE]
    python benchmarks/gpu_exactness.py MODEL --compare [--out FILE]

Runs of several shapes may go side by side; the second form makes one result of theirs. The third
runs on a CPU, where a GPU is not needed, and adds the comparison with it to a result.

Greedy and seeded requests; speculation off, chain and tree; alone and 2, 8, 32 at a time; an empty
and a warm prefix cache; two sizes of prompt chunks. The log probabilities of the five
likeliest tokens and of the chosen one stand for the logits of committed rows. With the reference on
the CPU, whose rounding is another, greedy answers are compared, and where they part, how near the
two tokens were.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from alula.bench import results
from alula.bench.decode import chat_ids
from alula.bench.workloads import select
from alula.engine.core import Engine
from alula.engine.outputs import TokenLogprobs
from alula.engine.settings import Settings
from alula.engine.speculator import asked, drafter_for, speculator
from alula.models.load import LoadedModel, load
from alula.models.progress import silent
from alula.sampling.params import SamplingParams

OUT = Path(__file__).parent / "results" / "gpu_exactness.json"
SHAPES = ("off", "chain:5", "tree:4x4:32")
BATCHES = (1, 2, 8, 32)
CHUNKS = (48, 512)
REQUESTS, LIKELIEST = 50, 5

Case = tuple[list[int], SamplingParams]
Answer = tuple[list[int], list[TokenLogprobs]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?")
    parser.add_argument("--combine", nargs="+", type=Path)
    parser.add_argument("--compare", action="store_true")
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--requests", type=int, default=REQUESTS)
    parser.add_argument("--batches", default=",".join(map(str, BATCHES)))
    parser.add_argument("--shapes", default=",".join(SHAPES))
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args()
    if options.combine:
        combine(options.combine, options.out)
        return
    if not options.model:
        parser.error("name a MODEL")
    if options.compare:
        compare(options.model, options.out)
        return
    dtype = "bfloat16" if options.device == "cuda" else "float32"
    model = load(options.model, options.device, dtype, silent)
    asked_for = cases(model, options.requests, options.tokens)
    batches = tuple(map(int, options.batches.split(",")))
    found = compared(model, asked_for, options.shapes.split(","), batches)
    settings = {"model": Path(options.model).name, "tokens": options.tokens}
    made = results.record("gpu_exactness", settings, found, ("alula", "torch", "triton"))
    results.write(options.out, made)
    print("EXACT" if not found["differing"] else "NOT EXACT", flush=True)


def combine(parts: list[Path], out: Path) -> None:
    """One result of several runs of the same requests, each of its own shapes."""
    first, *others = (json.loads(part.read_text("utf-8")) for part in parts)
    found = first["results"]
    for other in others:
        assert other["settings"] == first["settings"], "these are runs of other requests"
        assert other["results"]["requests"] == found["requests"], "these are other numbers of them"
        for key in ("shapes", "ways", "differing"):
            found[key] += other["results"][key]
        assert other["results"].get("greedy answers") == found.get("greedy answers")
    results.write(out, first)
    print("EXACT" if not found["differing"] else "NOT EXACT", found, flush=True)


def cases(model: LoadedModel, count: int, tokens: int) -> list[Case]:
    """Every other request is sampled."""
    prompts = [chat_ids(model, workload.prompt) for workload in select()]
    made = []
    for number in range(count):
        params = SamplingParams(
            temperature=0.0, max_tokens=tokens, ignore_eos=True, logprobs=LIKELIEST
        )
        if number % 2:
            params = replace(params, temperature=0.8, top_p=0.95, seed=number)
        made.append((prompts[number % len(prompts)], params))
    return made


def compared(
    model: LoadedModel, asked_for: list[Case], shapes: list[str], batches: tuple[int, ...]
) -> dict[str, Any]:
    """All ways against one: plain, alone, an empty cache, small chunks."""
    expected = answered(engine(model, "off", 1, CHUNKS[0]), asked_for)
    ways, differing = 0, []
    for shape, chunk, batch in itertools.product(shapes, CHUNKS, batches):
        started = time.perf_counter()
        made = engine(model, shape, batch, chunk)
        for cache in ("empty", "warm"):
            answers = answered(made, asked_for)
            ways += 1
            tokens, logits = (
                sum(a[part] != b[part] for a, b in zip(answers, expected, strict=True))
                for part in (0, 1)
            )
            if tokens or logits:
                differing.append([shape, chunk, batch, cache, tokens, logits])
                print("differs:", differing[-1], flush=True)
        launches = dict(made._runner.launches)
        print(shape, chunk, batch, launches, f"{time.perf_counter() - started:.1f} s", flush=True)
        del made
    return {
        "shapes": shapes,
        "ways": ways,
        "requests": len(asked_for),
        "differing": differing,
        "greedy answers": [
            answer[0] for answer, case in zip(expected, asked_for, strict=True) if case[1].greedy
        ],
    }


def engine(model: LoadedModel, shape: str, batch: int, chunk: int) -> Engine:
    settings = Settings(max_sequences=batch, max_length=1024, cache_tokens=40_000, chunk_rows=chunk)
    wish = asked(shape, None if shape == "off" else drafter_for(shape, "smollm2", None))
    return Engine(model, settings, speculator(wish, model.decoder))


def answered(made: Engine, asked_for: list[Case]) -> list[Answer]:
    requests = [made.add(*case) for case in asked_for]
    for _ in made.follow(requests):
        pass
    answers = [request.answers[0] for request in requests]
    return [(list(a.sequence.output_ids), list(a.output().logprobs or [])) for a in answers]


def compare(model_path: str, out: Path) -> None:
    """The greedy answers of a result and those of the reference in fp32: where they part, and the
    gap of the reference's two likeliest tokens there.
    """
    made = json.loads(out.read_text("utf-8"))
    ours, settings = made["results"]["greedy answers"], made["settings"]
    model = load(model_path, "cpu", "float32", silent)
    asked_for = cases(model, made["results"]["requests"], settings["tokens"])
    greedy = [case for case in asked_for if case[1].greedy]
    theirs = answered(engine(model, "off", 8, 512), greedy)
    gaps = []
    for number, (found, (expected, logprobs)) in enumerate(zip(ours, theirs, strict=True)):
        at = next((i for i, token in enumerate(expected) if token != found[i]), None)
        if at is not None:
            first, second = (logprob for _, logprob in logprobs[at].top[:2])
            gaps.append({"answer": number, "token": at, "nats": round(first - second, 4)})
    versions = results.record("", {}, {}, ("alula", "torch"))["versions"]
    made["results"]["against the CPU"] = {
        "answers": len(ours),
        "parted": gaps,
        "versions": versions,
    }
    results.write(out, made)
    print(made["results"]["against the CPU"], flush=True)


if __name__ == "__main__":
    main()
