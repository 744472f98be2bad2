"""Work that several threads share; what one of them raises is raised by the caller."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Sequence


def together(work: Callable[[], None], threads: int) -> None:
    """Run ``work`` in this thread and others; what any of them raises is raised here, when all have ended."""
    failed: list[BaseException] = []

    def guarded() -> None:
        try:
            work()
        except BaseException as error:
            failed.append(error)

    others = [threading.Thread(target=guarded) for _ in range(threads - 1)]
    for thread in others:
        thread.start()
    guarded()
    for thread in others:
        thread.join()
    if failed:
        raise failed[0]


def share(work: Callable[[int, int], None], jobs: Sequence[tuple[int, int]], threads: int) -> None:
    """Call ``work`` with each of the jobs, on as many threads.

    >>> done = []
    >>> share(lambda a, b: done.append(a + b), [(1, 2), (3, 4)], 2)
    >>> sorted(done)
    [3, 7]
    """
    turn = itertools.count()

    def loop() -> None:
        while (job := next(turn)) < len(jobs):
            work(*jobs[job])

    together(loop, min(threads, len(jobs)))
