"""vLLM's plain step of the 8B shape beside alula's: random weights, a context of 512, by batch.

    python benchmarks/peer_vllm.py [--batches 1,32] [--wait-for FILE] [--out FILE]
    python benchmarks/peer_vllm.py --beside ROUNDS... --out FILE

Runs in vLLM's own environment and imports nothing of alula's. A step is what 64 further tokens take
longer, divided by 64, so that the prompts' time cancels out. It can load while something else runs
and begin to measure when FILE is there.

The second form adds to a result the plain steps that `gpu_rounds.py` took before and after it in
the same run, and compares tokens a second.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import tempfile
import time
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

CONTEXT, FEW, MANY, REPEATS = 512, 24, 88, 5
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_act": "silu",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 128256,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "torch_dtype": "bfloat16",
    "bos_token_id": 1,
    "eos_token_id": 2,
    "tie_word_embeddings": False,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batches", default="1,32")
    parser.add_argument("--wait-for", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--beside", nargs="+", type=Path)
    options = parser.parse_args()
    if options.beside and not options.out:
        parser.error("name the result that --beside adds to: --out FILE")
    if options.beside:
        beside(options.beside, options.out)
        return
    batches = [int(batch) for batch in options.batches.split(",")]
    os.environ |= {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
    llm, params = loaded(max(batches))
    for batch in batches:
        seconds(llm, params(FEW), batch)
    print("loaded", flush=True)
    while options.wait_for and not options.wait_for.exists():
        time.sleep(0.2)
    found = []
    for batch in batches:
        steps = [
            (seconds(llm, params(MANY), batch) - seconds(llm, params(FEW), batch)) / (MANY - FEW)
            for _ in range(REPEATS)
        ]
        ms = 1e3 * median(steps)
        found.append(
            {"batch": batch, "step ms": ms, "least ms": 1e3 * min(steps), "tok/s": 1e3 * batch / ms}
        )
        print(found[-1], flush=True)
    if options.out:
        record = {
            "name": "peer_vllm",
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "versions": {"vllm": version("vllm"), "torch": version("torch")},
            "settings": {"context": CONTEXT, "shape": "llama-8b"},
            "results": found,
        }
        options.out.write_text(json.dumps(record, indent=2) + "\n")


def beside(runs: list[Path], out: Path) -> None:
    """Add alula's plain steps of the same run to a result."""
    record, *others = (json.loads(path.read_text("utf-8")) for path in (out, *runs))
    rounds = [found for other in others for found in other["results"]["rounds"]]
    plain = [r for r in rounds if (r["model"], r["shape"]) == ("8b", "off")]
    for found in record["results"]:
        steps = [r["round_ms"] for r in plain if r["batch"] == found["batch"]]
        found["alula step ms"], found["alula steps"] = median(steps), steps
        found["alula tok/s of vLLM's"] = round(found["step ms"] / median(steps), 3)
        print(found)
    record["machine"] = others[0]["machine"]
    record["versions"] |= {f"{k} beside": v for k, v in others[0]["versions"].items()}
    out.write_text(json.dumps(record, indent=2) + "\n")


def loaded(sequences: int) -> tuple[Any, Any]:
    """The engine, and how to ask for so many tokens."""
    from vllm import LLM, SamplingParams  # type: ignore[import-not-found]

    folder = Path(tempfile.mkdtemp())
    (folder / "config.json").write_text(json.dumps(CONFIG))
    llm = LLM(
        model=str(folder),
        load_format="dummy",
        skip_tokenizer_init=True,
        max_model_len=2048,
        max_num_seqs=sequences,
        gpu_memory_utilization=0.4,
        enable_prefix_caching=False,
    )

    def params(tokens: int) -> Any:
        return SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True, detokenize=False)

    return llm, params


def seconds(llm: Any, params: Any, batch: int) -> float:
    """What it takes to answer so many random prompts."""
    dice = random.Random(0)
    prompts = [
        {"prompt_token_ids": [dice.randrange(3, 128_000) for _ in range(CONTEXT)]}
        for _ in range(batch)
    ]
    started = time.perf_counter()
    llm.generate(prompts, params, use_tqdm=False)
    return time.perf_counter() - started


if __name__ == "__main__":
    main()
