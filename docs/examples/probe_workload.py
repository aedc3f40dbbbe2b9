"""A workload of `alula stack probe`: greedy tokens of alula's own engine.

    alula stack probe ENV --baseline OLD --workload docs/examples/probe_workload.py

For another engine, change `decode`. ALULA_FEATURE names the feature to switch on, "" for none:
here a kind of speculation, as chain:3. MODEL is the model, smollm2 by default.
"""

import json
import os
import time

import torch

from alula import LLM, SamplingParams

PROMPTS = ["The harbour was quiet in the early morning.", "def fibonacci(n):\n"]
TOKENS, REPETITIONS = 32, 3


def decode(llm: LLM, gaps: bool) -> tuple[list[list[int]], list[list[float]]]:
    """Greedy tokens of each prompt, and the gap between the best two logits at each token."""
    params = SamplingParams(
        temperature=0.0, max_tokens=TOKENS, ignore_eos=True, logprobs=2 if gaps else None
    )
    answers = [output.outputs[0] for output in llm.generate(PROMPTS, params)]
    tokens = [list(answer.token_ids) for answer in answers]
    pairs = [[entry.top for entry in answer.logprobs or ()] for answer in answers]
    return tokens, [[top[0][1] - top[1][1] for top in row] for row in pairs]


def launches(llm: LLM) -> dict[str, int] | None:
    """How often each kernel runs; None where the system lets nobody look."""
    cuda = torch.cuda.is_available()
    kind = torch.profiler.ProfilerActivity.CUDA if cuda else torch.profiler.ProfilerActivity.CPU
    with torch.profiler.profile(activities=[kind]) as seen:
        decode(llm, gaps=False)
    return {event.key: int(event.count) for event in seen.key_averages()} or None


def main() -> None:
    """Print what the probe reads: one line of JSON, the last."""
    torch.set_num_threads(1)
    feature = os.environ.get("ALULA_FEATURE") or "off"
    llm = LLM(os.environ.get("MODEL", "smollm2"), speculation=feature)
    tokens, gaps = decode(llm, gaps=True)
    speeds = []
    for _ in range(REPETITIONS):
        start = time.perf_counter()
        decode(llm, gaps=False)
        speeds.append(len(PROMPTS) * TOKENS / (time.perf_counter() - start))
    measured = {
        "tokens": tokens,
        "gaps": gaps,
        "tokens_per_second": speeds,
        "kernels": launches(llm),
    }
    print(json.dumps({"findings": [], "measured": measured}))


if __name__ == "__main__":
    main()
