"""Counts what would be launched on a GPU, on a machine without one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from triton.runtime.interpreter import GridExecutor

_ALLOCATES = ("aten.empty", "aten.new_empty", "aten._unsafe_view", "aten._reshape_alias")


class _Operations(TorchDispatchMode):
    """Counts torch's operations but for those that only make or look at tensors."""

    def __init__(self, found: Counter[str]) -> None:
        super().__init__()
        self._found = found

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: Any = (),
        kwargs: Any = None,
    ) -> Any:
        name = str(func).removesuffix(".default")
        looks = any(
            part.alias_info is not None and not part.alias_info.is_write
            for part in func._schema.returns
        )
        if not looks and not name.startswith(_ALLOCATES):
            self._found[name] += 1
        return func(*args, **(kwargs or {}))


@contextmanager
def launches(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter[str]]:
    """Counts torch's operations and Triton's kernels by name."""
    found: Counter[str] = Counter()
    run: Callable[..., None] = GridExecutor.__call__

    def counted(self: GridExecutor, *args: Any, **kwargs: Any) -> None:
        found[self.fn.__name__] += 1
        with _disable_current_modes():
            run(self, *args, **kwargs)

    with monkeypatch.context() as patched:
        patched.setattr(GridExecutor, "__call__", counted)
        with _Operations(found):
            yield found
