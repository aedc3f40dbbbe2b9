"""What launches do: counted on a machine without a GPU, kept from waiting on one with it."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves

_ALLOCATE = ("empty", "empty_like", "empty_strided", "new_empty")


class _Operations(TorchDispatchMode):
    """Counts torch's operations but for those that only make or look at tensors."""

    def __init__(self, found: Counter[str]) -> None:
        super().__init__()
        self._found = found

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = func._schema.name.split("::")[1]
        looks = not func._schema.is_mutable and _memory(result) <= _memory((args, kwargs))
        if not looks and name not in _ALLOCATE:
            self._found[name] += 1
        return result


def _memory(values: Any) -> set[int]:
    tensors = [leaf for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor)]
    return {tensor.untyped_storage().data_ptr() for tensor in tensors}


@contextmanager
def launches(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter[str]]:
    """Counts torch's operations and Triton's kernels by name."""
    from triton.runtime.interpreter import GridExecutor

    found: Counter[str] = Counter()
    run: Any = GridExecutor.__call__

    def counted(self: Any, *args: Any, **kwargs: Any) -> None:
        found[self.fn.__name__] += 1
        with _disable_current_modes():
            run(self, *args, **kwargs)

    with monkeypatch.context() as patched:
        patched.setattr(GridExecutor, "__call__", counted)
        with _Operations(found):
            yield found


@contextmanager
def without_reading_back() -> Iterator[None]:
    """Whatever waits for the GPU raises."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that the mode is a prototype
            torch.cuda.set_sync_debug_mode("error")
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")
