"""Decoding on the CPU: alula, plain and with its drafter, against transformers' `generate`; and
every way of `--speculation` against plain, by kind of text.

All run in one process on the same weights, threads and prompts, greedily, in turns whose order
alternates; the medians of several repeats are compared. Results: benchmarks/results/.

    python benchmarks/cpu_decode.py [--repeats 3] [--threads N] [--out FILE]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import torch
import transformers

from alula.bench import results
from alula.bench.compare import compare, verdict
from alula.bench.decode import Plan, chat_ids, measure, use_threads
from alula.bench.workloads import select
from alula.engine.core import Engine
from alula.engine.settings import Settings
from alula.engine.speculator import asked, speculator
from alula.models import dequantised
from alula.models.load import LoadedModel, load
from alula.sampling.params import SamplingParams
from alula.speculation.shipped import shipped

OUT = Path(__file__).parent / "results" / "cpu_decode.json"
PROMPTS_PER_KIND = 2
MAX_TOKENS = 64
EAGLE = "chain:4"
WAYS = ("ngram", EAGLE, "auto")
PACKAGES = ("alula", "torch", "transformers", "gguf", "tokenizers")

Answer = Callable[[list[int]], tuple[list[int], float]]
"""From prompt ids to answer ids and the seconds they took."""


class Timed(NamedTuple):
    prompt: int
    token_ids: list[int]
    seconds: float


def main() -> None:
    options = arguments()
    use_threads(options.threads)
    exact, fast = (load(options.model, "cpu", dtype) for dtype in ("float32", "bfloat16"))
    comparison = against_transformers(exact, fast, options.repeats)
    report(comparison)
    plan = Plan(
        select((), options.prompts_per_kind),
        max_tokens=MAX_TOKENS,
        repeats=options.repeats,
        speculation=WAYS,
        drafter=shipped(options.model),
    )
    by_kind = compare(measure(fast, plan))
    print(verdict(by_kind))
    settings = {
        "model": options.model,
        "threads": torch.get_num_threads(),
        "repeats": options.repeats,
        "max_tokens": MAX_TOKENS,
        "drafter": f"the one that comes with {options.model}",
        "temperature": 0.0,
    }
    found = {"answers": comparison, "by_kind": {"verdict": verdict(by_kind), **asdict(by_kind)}}
    results.write(options.out, results.record("cpu_decode", settings, found, PACKAGES))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--model", default="smollm2", help="a GGUF file, or a name that means one")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--prompts-per-kind", type=int, default=3)
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--out", type=Path, default=OUT)
    return parser.parse_args()


def against_transformers(exact: LoadedModel, fast: LoadedModel, repeats: int) -> dict[str, Any]:
    """Whole answers, prompt included, since `generate` does not tell the two apart."""
    prompts = [chat_ids(exact, workload.prompt) for workload in select((), PROMPTS_PER_KIND)]
    longest = max(map(len, prompts))
    drafter = shipped(exact.source.name)
    contenders = {
        "transformers float32": with_transformers(exact),
        "alula float32": with_alula(exact, longest),
        "alula float32 EAGLE-3": with_alula(exact, longest, drafter),
        "alula bfloat16": with_alula(fast, longest),
        "alula bfloat16 EAGLE-3": with_alula(fast, longest, drafter),
    }
    runs = take_turns(contenders, prompts, repeats)
    theirs, ours = "transformers float32", "alula float32 EAGLE-3"
    return {
        "prompts": len(prompts),
        "tokens_per_second": {name: speeds(timed, repeats) for name, timed in runs.items()},
        "gain": {name: median(gains(timed, runs[theirs], repeats)) for name, timed in runs.items()},
        "differing_prompts": sorted(
            {a.prompt for a, b in zip(runs[ours], runs[theirs], strict=True) if a[1] != b[1]}
        ),
    }


def with_transformers(model: LoadedModel) -> Answer:
    theirs = same_weights(model)
    ends = sorted(model.tokenizer.eos_ids)

    def answer(prompt: list[int]) -> tuple[list[int], float]:
        started = time.perf_counter()
        ids = torch.tensor([prompt])
        with torch.inference_mode():
            out = theirs.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                do_sample=False,
                max_new_tokens=MAX_TOKENS,
                eos_token_id=ends,
                pad_token_id=ends[0],
            )
        return out[0, len(prompt) :].tolist(), time.perf_counter() - started

    return answer


def same_weights(model: LoadedModel) -> transformers.LlamaForCausalLM:
    """transformers' model of the fp32 weights that alula keeps of a GGUF file."""
    shape, source = model.decoder.shape, model.source
    kept = dequantised.find(source.sha256 or dequantised.fingerprint(source.path), [])
    assert kept is not None and shape.family == "llama", "the benchmark needs a Llama in GGUF"
    config = transformers.LlamaConfig(
        vocab_size=shape.vocab_size,
        hidden_size=shape.hidden_size,
        intermediate_size=shape.intermediate_size,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        rms_norm_eps=shape.rms_eps,
        max_position_embeddings=shape.max_positions,
        rope_theta=shape.rope.base,
        tie_word_embeddings=shape.tied_head,
    )
    theirs = transformers.LlamaForCausalLM(config).float().eval()
    weights = {name: kept.weights.get(name) for name in kept.weights.names()}
    missing, unexpected = theirs.load_state_dict(weights, strict=False)
    assert not unexpected and set(missing) <= {"lm_head.weight"}, (missing, unexpected)
    return theirs


def with_alula(model: LoadedModel, longest: int, drafter: Path | None = None) -> Answer:
    wish = asked(EAGLE if drafter else "off", drafter)
    settings = Settings(max_sequences=1, max_length=longest + MAX_TOKENS)
    params = SamplingParams(temperature=0.0, max_tokens=MAX_TOKENS)

    def answer(prompt: list[int]) -> tuple[list[int], float]:
        # A fresh engine has no prompt in its cache, as transformers has none.
        engine = Engine(model, settings, speculator(wish, model.decoder))
        started = time.perf_counter()
        request = engine.add(prompt, params)
        while engine.has_work:
            engine.step()
        return request.answers[0].output().token_ids, time.perf_counter() - started

    return answer


def take_turns(
    contenders: dict[str, Answer], prompts: Sequence[list[int]], repeats: int
) -> dict[str, list[Timed]]:
    """Runs by contender, in the order of repeats and prompts; each warms up on the first prompt."""
    names = list(contenders)
    for name in names:
        contenders[name](prompts[0])
    runs: dict[str, list[Timed]] = {name: [] for name in names}
    for repeat in range(repeats):
        for number, prompt in enumerate(prompts):
            for name in names[:: 1 if (repeat + number) % 2 == 0 else -1]:
                runs[name].append(Timed(number, *contenders[name](prompt)))
    return runs


def by_repeat(timed: list[Timed], repeats: int) -> list[float]:
    """Tokens per second of each repeat."""
    size = len(timed) // repeats
    parts = [timed[start : start + size] for start in range(0, len(timed), size)]
    return [sum(len(t.token_ids) for t in part) / sum(t.seconds for t in part) for part in parts]


def speeds(timed: list[Timed], repeats: int) -> dict[str, float]:
    found = by_repeat(timed, repeats)
    return {"median": median(found), "low": min(found), "high": max(found)}


def gains(timed: list[Timed], base: list[Timed], repeats: int) -> list[float]:
    pairs = zip(by_repeat(timed, repeats), by_repeat(base, repeats), strict=True)
    return [own / other for own, other in pairs]


def report(comparison: dict[str, Any]) -> None:
    for name, speed in comparison["tokens_per_second"].items():
        spread = f"{speed['median']:6.1f} tok/s ({speed['low']:.1f}–{speed['high']:.1f})"
        print(f"{name:22} {spread}  {comparison['gain'][name]:.2f}× transformers")
    wrong = comparison["differing_prompts"]
    same = "the same tokens" if not wrong else f"OTHER TOKENS on prompts {wrong}"
    print(f"alula float32 EAGLE-3 gives {same} as transformers on {comparison['prompts']} prompts")


if __name__ == "__main__":
    main()
