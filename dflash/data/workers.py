"""One function over many items in several processes: results in the order of the items, few items in memory."""

import multiprocessing
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from itertools import chain, islice
from typing import Any, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

ITEMS_BEFORE_WORKERS = 16
"""With fewer items than this the processes would take longer to start than the work."""
ITEMS_PER_WORKER = 2
"""Items in flight for each process: one that is worked on, and one that waits."""

_work: Callable[[Any], Any] | None = None


def in_order(work: Callable[[Item], Result], items: Iterable[Item], num_workers: int) -> Iterator[Result]:
    """`map(work, items)` in up to `num_workers` processes; the first error in the order of the items is raised.

    Args:
        work: goes to each process once, pickled.
        num_workers: 1 works in this process, and so do few items.
    """
    waiting = iter(items)
    head = list(islice(waiting, ITEMS_BEFORE_WORKERS))
    if num_workers == 1 or len(head) < ITEMS_BEFORE_WORKERS:
        yield from map(work, chain(head, waiting))
        return
    # spawned: a fork would copy locks that threads of Arrow or of the tokenizer hold
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(num_workers, context, _start, (work,))
    try:
        flying: deque[Future[Any]] = deque()
        for item in chain(head, waiting):
            flying.append(pool.submit(_run, item))
            if len(flying) >= num_workers * ITEMS_PER_WORKER:
                yield flying.popleft().result()
        while flying:
            yield flying.popleft().result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _start(work: Callable[[Any], Any]) -> None:
    global _work
    _work = work
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """A killed parent leaves its workers waiting for ever; they end themselves."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _run(item: Any) -> Any:
    if _work is None:
        raise RuntimeError("a worker was not started by in_order")
    return _work(item)
