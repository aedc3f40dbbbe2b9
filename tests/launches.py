"""Counting what a GPU would be given to run, where there is none."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from torch.utils._python_dispatch import TorchDispatchMode

FREE = {
    *("alias", "as_strided", "detach", "expand", "flatten", "permute", "reshape", "select"),
    *("slice", "split", "t", "to", "transpose", "unbind", "unsqueeze", "view", "_unsafe_view"),
    *("empty", "empty_like", "empty_strided", "new_empty"),
}
"""Operations of torch that make a view, or room. `to` and `flatten` are there for what they are
in a round: of tensors that are as they should be already.
"""


class _Operations(TorchDispatchMode):
    def __init__(self, counts: Counter[str]) -> None:
        super().__init__()
        self.counts = counts

    def __torch_dispatch__(self, func: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._schema.name.split("::")[1]
        if name not in FREE:
            self.counts[name] += 1
        return func(*args, **(kwargs or {}))


@contextmanager
def launches(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter[str]]:
    """Launches within, by name: operations of torch, and kernels run by Triton's interpreter."""
    from triton.runtime import interpreter

    counts: Counter[str] = Counter()
    operations, run = _Operations(counts), interpreter.GridExecutor.__call__

    def counted(self: Any, *args: Any, **kwargs: Any) -> Any:
        counts[self.fn.__name__] += 1
        operations.__exit__(None, None, None)
        try:
            return run(self, *args, **kwargs)
        finally:
            operations.__enter__()

    with monkeypatch.context() as patched, operations:
        patched.setattr(interpreter.GridExecutor, "__call__", counted)
        yield counts
