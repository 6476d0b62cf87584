"""Workers of a sweep: this process, a pool here, or a Dask scheduler's. They price; they do not write."""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import connection, get_context, parent_process
from pathlib import Path
from typing import Any

from simulator.errors import InputError, UnsupportedError

WAIT_SECONDS = 120.0
"""How long a scheduler and its first worker are waited for."""
_SCHEDULER = re.compile(r"(?:tcp|tls)://.+:\d+|.+\.json")
_ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
Slots = Callable[[], int]


@dataclass(frozen=True, slots=True)
class Workers:
    """Processes that parts are handed to, here or at a scheduler."""

    executor: Executor
    slots: Slots
    """Parts that are priced at once, now."""


class Here(Executor):
    """Prices in this process, one part after another."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Return a future that is done."""
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:  # noqa: BLE001  the future tells it
            future.set_exception(error)
        return future


@contextmanager
def workers_of(workers: int | None, scheduler: str | None) -> Iterator[Workers]:
    """Workers: those of a scheduler, else so many processes here, by default one for each core."""
    if scheduler is not None:
        with _dask(scheduler) as of_scheduler:
            yield of_scheduler
        return
    count = _cores() if workers is None else workers
    if count == 1:
        yield Workers(Here(), lambda: 1)
        return
    with _pool(count) as pool:
        yield Workers(pool, lambda: count)


def check_workers(workers: int | None, scheduler: str | None) -> None:
    """Refuse what names no workers. Raises InputError or UnsupportedError."""
    if scheduler is None:
        return
    if workers is not None:
        raise InputError("workers and scheduler exclude each other: give one")
    if not _SCHEDULER.fullmatch(scheduler):
        raise InputError(f"scheduler '{scheduler}': write tcp://HOST:PORT, tls://HOST:PORT or a scheduler file .json")
    if scheduler.endswith(".json") and not Path(scheduler).is_file():
        raise InputError(f"scheduler {scheduler}: no such file; `dask scheduler --scheduler-file FILE` writes it")
    _distributed()


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def _pool(count: int) -> Iterator[ProcessPoolExecutor]:
    """A pool whose processes keep to a core each, and do not outlive this one."""
    left_open = [name for name in _ONE_THREAD if name not in os.environ]
    os.environ.update(dict.fromkeys(left_open, "1"))
    pool = ProcessPoolExecutor(count, mp_context=get_context("spawn"), initializer=_follow_parent)
    try:
        yield pool
    except BaseException:
        processes = list((getattr(pool, "_processes", None) or {}).values())
        pool.shutdown(wait=False, cancel_futures=True)
        for process in processes:
            process.kill()
        raise
    finally:
        pool.shutdown(cancel_futures=True)
        for name in left_open:
            del os.environ[name]


def _follow_parent() -> None:
    """End with the process that started this one, however it ends."""
    import signal  # noqa: PLC0415  of a worker alone

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent hears it, and ends the pool
    parent = parent_process()
    if parent is not None:

        def watch() -> None:
            connection.wait([parent.sentinel])
            os._exit(1)

        threading.Thread(target=watch, daemon=True).start()


def _distributed() -> Any:
    try:
        import distributed  # noqa: PLC0415  only who names a scheduler needs it
    except ImportError as error:
        raise UnsupportedError(
            "scheduler: Dask's distributed is not installed: pip install '.[sweep]' in a checkout, else pip install "
            "distributed"
        ) from error
    return distributed


@contextmanager
def _dask(scheduler: str) -> Iterator[Workers]:
    """The workers of a running scheduler, as many as it has at the time."""
    distributed = _distributed()
    where: dict[str, Any] = {"scheduler_file": scheduler} if scheduler.endswith(".json") else {"address": scheduler}
    try:
        client = distributed.Client(**where, timeout=WAIT_SECONDS, set_as_default=False)
    except (OSError, TimeoutError, ValueError) as error:
        raise UnsupportedError(f"scheduler {scheduler}: {str(error) or 'does not answer'}") from error
    try:
        try:
            client.wait_for_workers(1, timeout=WAIT_SECONDS)
        except TimeoutError as error:
            raise UnsupportedError(f"scheduler {scheduler}: no worker came in {WAIT_SECONDS:.0f} s") from error
        with client.get_executor(pure=False) as executor:
            yield Workers(executor, _slots(client))
    finally:
        with suppress(Exception):
            client.close(timeout=5)


def _slots(client: Any) -> Slots:
    """Threads of all workers; asked again every few seconds, as workers come and go."""
    known = [0.0, 1]

    def slots() -> int:
        if time.monotonic() - known[0] > 5.0:
            known[:] = [time.monotonic(), max(sum(client.nthreads().values()), 1)]
        return int(known[1])

    return slots
