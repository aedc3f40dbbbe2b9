"""A fitted drafter in the public format, with a card that says where it comes from."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from alula.errors import ModelError
from alula.models.home import whole_file
from alula.speculation.eagle3_checkpoint import Eagle3Checkpoint, load, save, vocabulary_map
from alula.speculation.eagle3_config import read_config

CARD = "README.md"


class Fitted(NamedTuple):
    """A drafter as far as it has learnt."""

    checkpoint: Eagle3Checkpoint
    step: int
    steps: int
    """Of the whole fit."""


def fitted(state: Path, dtype: torch.dtype = torch.float16) -> Fitted:
    """The drafter in a fit's checkpoint. Raises ModelError where there is none."""
    try:
        with safe_open(state, "pt") as file:
            facts = json.loads(file.metadata()["facts"])
            names = [name for name in file.keys() if name.startswith("weights.")]  # noqa: SIM118
            tensors = {n.removeprefix("weights."): file.get_tensor(n).to(dtype) for n in names}
    except (OSError, SafetensorError, KeyError, TypeError) as error:
        raise ModelError(
            f"there is no fitted drafter in {state}", str(error), "run the stage fit first"
        ) from error
    config = read_config(facts["config"])
    if config.draft_vocab_size < config.vocab_size:
        tensors |= vocabulary_map(torch.tensor(facts["ids"]), config.vocab_size)
    return Fitted(Eagle3Checkpoint(config, tensors), facts["step"], facts["batches"])


def export(checkpoint: Eagle3Checkpoint, folder: Path, card: str) -> None:
    """Write a drafter's folder and read it back.

    Raises ModelError where weights do not fit fp16 or what is read back differs, MachineError
    where the folder cannot be written.
    """
    for name, tensor in checkpoint.tensors.items():
        if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
            raise ModelError(
                f"{name} cannot be exported",
                f"it holds numbers that are not finite in {tensor.dtype}",
                "fit again with a lower --rate",
            )
    save(checkpoint, folder)
    again = load(folder)
    for name, tensor in checkpoint.tensors.items():
        if not torch.equal(tensor, again.tensors[name]):
            raise ModelError(f"{name} changed on disk", f"{folder} reads back otherwise", "retry")
    content = card.encode()
    with whole_file(folder / CARD, len(content), "write the model card") as file:
        file.write(content)


def parameters(checkpoint: Eagle3Checkpoint) -> int:
    """Trained numbers in a drafter."""
    floats: list[Tensor] = [t for t in checkpoint.tensors.values() if t.is_floating_point()]
    return sum(t.numel() for t in floats)


def card(
    *,
    target: str,
    fitted: Fitted,
    recipe: Mapping[str, Any],
    manifest: Mapping[str, Any],
    curve: Sequence[Mapping[str, Any]],
    evaluation: Mapping[str, Any] | None,
    commands: Sequence[str],
    stages: Mapping[str, Mapping[str, Any]],
) -> str:
    """The model card in Markdown; `stages` by name: seconds, machine, versions."""
    checkpoint, config = fitted.checkpoint, fitted.checkpoint.config
    sections = [
        _head(target),
        "## What it is\n\n"
        f"One decoder layer of width {config.hidden_size} over three of the target's states, with "
        f"a draft vocabulary of {config.draft_vocab_size:,} of {config.vocab_size:,} tokens: "
        f"{parameters(checkpoint) / 1e6:.1f} M weights in "
        f"{str(checkpoint.dtype).removeprefix('torch.')}. The format is the public one of EAGLE-3, "
        "which alula, SGLang and vLLM read.",
        "## How it was made\n\n" + "\n".join(f"    {command}" for command in commands),
        _table("Settings", recipe),
        _data(manifest),
        _table("Stages", {name: _stage(stage) for name, stage in stages.items()}),
        _learning(fitted, curve),
    ]
    if evaluation is not None:
        sections.append(_measured(evaluation))
    return "\n\n".join(part for part in sections if part) + "\n"


def _head(target: str) -> str:
    return (
        "---\nlicense: apache-2.0\ntags: [eagle3, speculative-decoding, alula]\n"
        f"base_model: {json.dumps(target)}\n---\n\n"
        f"# EAGLE-3 drafter for {target}\n\n"
        "Trained by alula on text that the target wrote itself; no data set was used. Decoding "
        "with it gives the target's own tokens, only sooner."
    )


def _data(manifest: Mapping[str, Any]) -> str:
    shards = manifest.get("shards", [])
    if not shards:
        return ""
    rows: dict[str, Any] = {
        key: sum(shard[key] for shard in shards)
        for key in ("conversations", "held_out", "tokens", "answer_tokens")
    }
    for key in ("by_source", "by_temperature", "dropped"):
        total: Counter[str] = Counter()
        for shard in shards:
            total.update(shard[key])
        rows[key] = ", ".join(f"{name} {count:,}" for name, count in sorted(total.items()))
    return _table("Data", rows)


def _stage(stage: Mapping[str, Any]) -> str:
    known, versions = stage["machine"], stage["versions"]
    processor = f"{known['cpu']}, {known['threads']} threads"
    software = ", ".join(f"{name} {found}" for name, found in versions.items() if found)
    return f"{stage['seconds']:,.0f} s on {', '.join(known['gpus']) or processor}; {software}"


def _learning(fitted: Fitted, curve: Sequence[Mapping[str, Any]]) -> str:
    learnt = [point for point in curve if point["step"] <= fitted.step]
    trained = [point for point in learnt if "loss" in point]
    judged = [point for point in learnt if "tau" in point]
    if not trained or not judged:
        return ""
    rows = {
        "optimiser steps": f"{fitted.step:,} of {fitted.steps:,}",
        "last loss by step": " ".join(f"{loss:.3f}" for loss in trained[-1]["loss"]),
        "last accuracy by step": " ".join(f"{share:.3f}" for share in trained[-1]["accuracy"]),
        "τ on held-out greedy text": f"{judged[-1]['tau']:.3f}",
    }
    return _table("Learning", rows)


def _measured(evaluation: Mapping[str, Any]) -> str:
    lines = [
        "## Measured\n",
        "τ is the accepted length, the bonus token included; in brackets 95 % of bootstrap "
        "resamples over prompts. Answers that loop are left out of all rows but their own.\n",
        "| shape | temperature | noise | text | prompts | τ | acceptance by depth, % |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in evaluation["rows"]:
        acceptance = " ".join(f"{share * 100:.0f}" for share in row["acceptance"])
        lines.append(
            f"| {row['shape']} | {row['temperature']} | {row['noise']} | {row['kind']} | "
            f"{row['prompts']} | {row['tau']:.2f} ({row['low']:.2f}–{row['high']:.2f}) | "
            f"{acceptance} |"
        )
    return "\n".join(lines)


def _table(title: str, rows: Mapping[str, Any]) -> str:
    lines = [f"| {name} | {value} |" for name, value in rows.items()]
    return "\n".join([f"## {title}\n", "| | |", "|---|---|", *lines])
