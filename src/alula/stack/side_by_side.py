"""Calls that wait for a network, several at a time, and that nobody who interrupts waits for."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


def begin(calls: Sequence[Callable[[], T]], at_once: int) -> list[Future[T]]:
    """Run calls in threads that end with the process; what becomes of each, in their order.

    An executor's threads are waited for at exit, so that Ctrl-C would take as long as an index
    that does not answer. What has not begun can be cancelled.
    """
    futures: list[Future[T]] = [Future() for _ in calls]
    waiting = iter(zip(futures, calls, strict=True))
    one_takes = threading.Lock()

    def work() -> None:
        while True:
            with one_takes:
                taken = next(waiting, None)
            if taken is None:
                return
            _settle(*taken)

    for _ in range(min(at_once, len(calls))):
        threading.Thread(target=work, daemon=True).start()
    return futures


def _settle(future: Future[T], call: Callable[[], T]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        future.set_result(call())
    except BaseException as error:  # it is raised where the result is asked for
        future.set_exception(error)


def in_order(calls: Sequence[Callable[[], T]], at_once: int) -> Iterator[T]:
    """The results as they are asked for; what has not begun does not, once one has failed."""
    futures = begin(calls, at_once)
    try:
        yield from (future.result() for future in futures)
    finally:
        for future in futures:
            future.cancel()
