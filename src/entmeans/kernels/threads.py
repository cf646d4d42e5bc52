"""Rows shared out among threads: any number of them, from any caller, with the same result."""

from __future__ import annotations

import itertools
import math
import os
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress

import torch

PARTS = 32
"""Largest number of parts; more processors than that stay idle."""

PART_WORK = 2**22
"""Work of a part, at least.  The unit is the product of two numbers; a core does 2^25 in 1 ms."""

PART_ROWS = 2048
"""Rows from which adding up the sums of parts takes no time, whatever their size."""

PART_BYTES = 2**25
"""Memory for the sums of all parts together, but for the first two parts."""

THREAD_WORK = 2**23
"""Work from which a second thread is worth waking, which takes some 0.1 ms."""

_pool: ThreadPoolExecutor | None = None
_lock = threading.Lock()


def parts(n: int, row_work: int, bytes_of_sums: int = 0) -> list[tuple[int, int]]:
    """First and last rows of parts of n rows, each of so much work.

    They depend on the problem and not on the number of threads: sums over parts, taken in their
    order, are then the same to the last bit for any number of threads.
    """
    least = max(PART_WORK // max(row_work, 1), min(PART_ROWS, bytes_of_sums // 16))
    room = PART_BYTES // max(bytes_of_sums, 1)
    most = max(1, min(PARTS, n // max(least, 1), max(2, room)))
    count = 2 ** int(math.log2(most))  # as many for each of 2, 4, 8, ... threads
    ends = [n * i // count for i in range(count + 1)]
    return list(itertools.pairwise(ends))


def share_out(task: Callable[[int], None], count: int, work: int) -> None:
    """Run ``task(i)`` for each i below count, by up to `torch.get_num_threads` threads.

    The thread that calls works too, so a pool that is busy with others delays nobody.
    """
    threads = min(torch.get_num_threads(), count, 1 + work // THREAD_WORK)
    left = iter(range(count))

    def run() -> None:
        for i in left:
            task(i)

    others: list[Future[None]] = []
    try:
        with suppress(RuntimeError):  # at the end of the interpreter there are no new threads
            others += (_workers().submit(run) for _ in range(threads - 1))
        run()
    finally:
        deque(left, maxlen=0)  # after an error, nobody starts another part
        waiting = [other for other in others if not other.cancel()]
        wait(waiting)
    for other in waiting:
        other.result()


def _workers() -> ThreadPoolExecutor:
    global _pool
    with _lock:
        if _pool is None:
            _pool = ThreadPoolExecutor(os.cpu_count(), thread_name_prefix="entmeans")
        return _pool


def _forget() -> None:
    """Threads and locks of a parent mean nothing in its fork."""
    global _pool, _lock
    _pool, _lock = None, threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
