"""A small decoder, greedy, with weights that come out of integers: the same in every environment.

It prints what a workload of `alula stack probe` prints: tokens, the gap between the best two logits
at each, tokens a second of each repetition, and how often each kernel was launched in one decode.

Runs in the examined environment: nothing of alula is imported, one line of JSON at the end.
"""

import importlib
import json
import math
import sys
import time
from typing import Any

VOCABULARY, WIDTH, LAYERS, HEADS, INNER = 512, 256, 4, 4, 512
PROMPT = [11, 3, 400, 77, 256, 9, 130, 5]
TOKENS, REPETITIONS = 64, 5
LOGIT_SCALE = 3.0
_MASK = (1 << 32) - 1


def numbers(torch: Any, salt: int, *shape: int) -> Any:
    """Values of variance one, from a hash of their place alone (32-bit finaliser of murmur3)."""
    total = math.prod(shape)
    value = torch.zeros(total, dtype=torch.float64)
    for part in range(4):
        h = (torch.arange(total, dtype=torch.int64) * 4 + part + salt * 0x9E3779B1) & _MASK
        for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
            h = ((h ^ (h >> shift)) * (factor & 0x7FFFFFFF)) & _MASK
        value += ((h ^ (h >> 16)) & _MASK).double() / 2**32 - 0.5
    return (value * math.sqrt(3.0)).reshape(shape)


class Decoder:
    """Attention with rotary positions and a gated MLP, as in Llama."""

    def __init__(self, torch: Any, device: str, dtype: Any) -> None:
        self.torch = torch
        self.half = WIDTH // HEADS // 2
        narrow, inner = WIDTH**-0.5, INNER**-0.5

        def weight(salt: int, rows: int, columns: int, scale: float) -> Any:
            return (numbers(torch, salt, rows, columns) * scale).to(dtype).to(device)

        self.embedding = weight(1, VOCABULARY, WIDTH, 1.0)
        self.head = weight(2, VOCABULARY, WIDTH, LOGIT_SCALE * narrow)
        self.layers = [
            (
                weight(10 * n + 10, 3 * WIDTH, WIDTH, narrow),
                weight(10 * n + 11, WIDTH, WIDTH, narrow),
                weight(10 * n + 12, 2 * INNER, WIDTH, narrow),
                weight(10 * n + 13, WIDTH, INNER, inner),
            )
            for n in range(LAYERS)
        ]
        self.device, self.dtype = device, dtype
        self.cache: list[Any] = [None] * LAYERS

    def norm(self, x: Any) -> Any:
        """Each row divided by its root mean square."""
        wide = x.double() if self.dtype == self.torch.float64 else x.float()
        return (wide * self.torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(self.dtype)

    def rotated(self, x: Any, first: int) -> Any:
        """Rows of (heads, n, width) turned by their positions from `first` on."""
        torch = self.torch
        steps = torch.arange(self.half, dtype=torch.float64) / self.half
        places = torch.arange(first, first + x.shape[1], dtype=torch.float64)
        angles = torch.outer(places, 10000.0**-steps)
        kind = torch.float64 if self.dtype == torch.float64 else torch.float32
        cos, sin = (f(angles).to(kind).to(self.device) for f in (torch.cos, torch.sin))
        a, b = x[..., : self.half].to(kind), x[..., self.half :].to(kind)
        return torch.cat((a * cos - b * sin, b * cos + a * sin), -1).to(self.dtype)

    def attend(self, layer: int, x: Any, first: int) -> Any:
        """Causal attention over all that was seen so far."""
        torch = self.torch
        q, k, v = (x @ self.layers[layer][0].T).reshape(-1, 3, HEADS, 2 * self.half).unbind(1)
        q, k, v = (each.transpose(0, 1) for each in (q, k, v))
        q, k = self.rotated(q, first), self.rotated(k, first)
        if self.cache[layer] is not None:
            k, v = (torch.cat(pair, 1) for pair in zip(self.cache[layer], (k, v)))  # noqa: B905
        self.cache[layer] = (k, v)
        scores = (q @ k.transpose(1, 2)) * (2 * self.half) ** -0.5
        seen = torch.arange(k.shape[1], device=self.device)
        own = torch.arange(first, first + q.shape[1], device=self.device)
        scores = scores.masked_fill(seen[None, :] > own[:, None], float("-inf"))
        mixed = scores.softmax(-1) @ v
        return mixed.transpose(0, 1).reshape(-1, WIDTH) @ self.layers[layer][1].T

    def logits(self, tokens: list[int], first: int) -> Any:
        """The last row's logits, after tokens that start at position `first`."""
        torch = self.torch
        if first == 0:
            self.cache = [None] * LAYERS
        x = self.embedding[torch.tensor(tokens, device=self.device)]
        for number, (_, _, up, down) in enumerate(self.layers):
            x = x + self.attend(number, self.norm(x), first)
            gate, value = (self.norm(x) @ up.T).chunk(2, -1)
            x = x + (torch.nn.functional.silu(gate) * value) @ down.T
        return (self.norm(x[-1:]) @ self.head.T)[0]


def decode(decoder: Decoder, count: int) -> tuple[list[int], list[float]]:
    """Greedy tokens, and the gap between the best two logits at each."""
    tokens, gaps, given, first = [], [], PROMPT, 0
    for _ in range(count):
        logits = decoder.logits(given, first)
        best = logits.double().topk(2)
        tokens.append(int(best.indices[0]))
        gaps.append(float(best.values[0] - best.values[1]))
        first += len(given)
        given = tokens[-1:]
    return tokens, gaps


def launches(torch: Any, decoder: Decoder, cuda: bool) -> dict[str, int] | None:
    """How often each kernel runs in a decode of a few tokens; on the CPU, each operator.

    None where the system lets nobody look, as some containers do.
    """
    profiler = torch.profiler
    kind = profiler.ProfilerActivity.CUDA if cuda else profiler.ProfilerActivity.CPU
    try:
        with profiler.profile(activities=[kind]) as seen:
            decode(decoder, 4)
            if cuda:
                torch.cuda.synchronize()
        return {event.key: int(event.count) for event in seen.key_averages()} or None
    except RuntimeError:
        return None


def main() -> None:
    """The first token against double precision, then tokens, gaps, speed and kernels."""
    torch: Any = importlib.import_module("torch")
    torch.set_grad_enabled(False)
    torch.set_num_threads(1)  # so small a model gains nothing from more, and loses its steadiness
    cuda = torch.cuda.is_available() and "--cpu" not in sys.argv
    device, dtype = ("cuda:0", torch.bfloat16) if cuda else ("cpu", torch.float32)
    decoder = Decoder(torch, device, dtype)
    reference = Decoder(torch, "cpu", torch.float64).logits(PROMPT, 0)
    found = decoder.logits(PROMPT, 0).double().cpu()
    error = float((found - reference).abs().max())
    tokens, gaps = decode(decoder, TOKENS)
    findings = []
    if not bool(torch.isfinite(found).all()) or error > LOGIT_SCALE / (8 if cuda else 1000):
        findings.append(f"the first token's logits are off by {error:.3g}")
    speeds = []
    for _ in range(REPETITIONS):
        start = time.perf_counter()
        decode(decoder, TOKENS)
        speeds.append(TOKENS / (time.perf_counter() - start))
    measured = {
        "model": f"{LAYERS} layers of {WIDTH}, {str(dtype).partition('.')[2]} on {device}",
        "first_token_error": error,
        "tokens": tokens,
        "gaps": gaps,
        "tokens_per_second": speeds,
        "kernels": launches(torch, decoder, cuda),
    }
    print(json.dumps({"findings": findings, "measured": measured}))


if __name__ == "__main__":
    main()
