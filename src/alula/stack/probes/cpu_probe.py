"""A product of matrices on the CPU against plain Python, where there is no GPU to try.

Runs in the examined environment: nothing of alula is imported, one line of JSON at the end.
"""

import importlib
import json
from typing import Any

SIZE = 24


def numbers(salt: int) -> list[list[int]]:
    """Whole numbers so small that every product of such matrices is exact in fp32."""
    return [[(7 * i + 13 * j + salt) % 17 - 8 for j in range(SIZE)] for i in range(SIZE)]


def product(a: list[list[int]], b: list[list[int]]) -> list[list[int]]:
    """The product as it is defined."""
    return [[sum(x * y for x, y in zip(row, column)) for column in zip(*b)] for row in a]  # noqa: B905


def main() -> None:
    """Two types, each exact."""
    torch: Any = importlib.import_module("torch")
    a, b = numbers(1), numbers(5)
    wanted = product(a, b)
    parts = {}
    for name in ("float32", "float64"):
        kind = getattr(torch, name)
        found = (torch.tensor(a, dtype=kind) @ torch.tensor(b, dtype=kind)).tolist()
        parts[f"torch on the CPU, {name}"] = "" if found == wanted else "a product is wrong"
    findings = [f"{part}: {wrong}" for part, wrong in parts.items() if wrong]
    print(json.dumps({"findings": findings, "measured": {}, "parts": parts}))


if __name__ == "__main__":
    main()
