"""An answer as JSON, and what it cost in one line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from alula.cli.prompts import Prompt

if TYPE_CHECKING:
    from alula.engine.llm import LLM
    from alula.engine.outputs import CompletionOutput, RequestOutput

_NAMED_SEEDS = 8


def objects(llm: LLM, number: int, prompt: Prompt, output: RequestOutput) -> list[dict[str, Any]]:
    """One object for each sample of a prompt."""
    asked = {"prompt": prompt} if isinstance(prompt, str) else {"messages": prompt}
    shared = {
        "seed": output.seed,
        "seconds": output.seconds,
        "first_token_seconds": output.first_token_seconds,
        "prompt_tokens": len(output.prompt_token_ids),
        "model": llm.model.source.name,
        "device": str(llm.model.decoder.device),
        "dtype": str(llm.model.decoder.dtype).removeprefix("torch."),
        "speculation": llm.speculator.reason,
        "notes": llm.notes,
    }
    return [
        {"number": number, **asked, **_sample(llm, answer), **shared} for answer in output.outputs
    ]


def _sample(llm: LLM, answer: CompletionOutput) -> dict[str, Any]:
    speculation = answer.speculation
    found: dict[str, Any] = {
        "sample": answer.index,
        "text": answer.text,
        "token_ids": answer.token_ids,
        "finish_reason": answer.finish_reason,
        "stop_reason": answer.stop_reason,
        "rounds": speculation.rounds,
        "tokens_per_round": speculation.tokens_per_round,
        "acceptance": speculation.acceptance,
        "prefix_tokens": answer.prefix_tokens,
        "preemptions": answer.preemptions,
    }
    if answer.logprobs is not None:
        found["logprobs"] = _logprobs(llm, answer)
    return found


def _logprobs(llm: LLM, answer: CompletionOutput) -> list[dict[str, Any]]:
    def one(token: int, logprob: float) -> dict[str, Any]:
        text = llm.model.tokenizer.token_text(token)
        return {"token_id": token, "token": text, "logprob": logprob}

    assert answer.logprobs is not None
    return [
        one(token, entry.logprob) | {"top": [one(*pair) for pair in entry.top]}
        for token, entry in zip(answer.token_ids, answer.logprobs, strict=True)
    ]


def summary(outputs: Sequence[RequestOutput], seconds: float, sampled: bool) -> str:
    """Tokens, speed, how speculation fared, and the seeds of what was drawn, in one line."""
    answers = [answer for output in outputs for answer in output.outputs]
    tokens = sum(len(answer.token_ids) for answer in answers)
    rounds = sum(answer.speculation.rounds for answer in answers)
    emitted = sum(answer.speculation.emitted for answer in answers)
    parts = [f"{tokens} tokens in {seconds:.1f} s", f"{tokens / seconds:.1f} tok/s"]
    if len(outputs) == 1:
        parts.append(f"first after {outputs[0].first_token_seconds:.2f} s")
    if rounds:
        parts.append(f"τ {emitted / rounds:.2f} in {rounds} rounds")
    reused = sum(answer.prefix_tokens for answer in answers)
    if reused:
        parts.append(f"{reused} prompt tokens from the cache")
    if sampled:
        parts.append(_seeds(list(dict.fromkeys(output.seed for output in outputs))))
    return " · ".join(parts)


def _seeds(seeds: list[int]) -> str:
    """What has to be given to draw the same again."""
    if len(seeds) > _NAMED_SEEDS:
        return f"{len(seeds)} seeds (--json names them)"
    return f"{'seed' if len(seeds) == 1 else 'seeds'} {', '.join(map(str, seeds))}"
