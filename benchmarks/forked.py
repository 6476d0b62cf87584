"""Tests run in a child of this process, which has imported pytest and what the simulator imports, but not it."""

from __future__ import annotations

import contextlib
import json
import os
import random
import resource
import select
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final

import click  # noqa: F401  imported here once, not in every child
import numpy as np  # noqa: F401
import pydantic  # noqa: F401
import pytest
import scipy.optimize  # noqa: F401
import yaml  # noqa: F401

OPTIONS: Final = ("-x", "-q", "--assert=plain", "-p", "no:cacheprovider", "-p", "no:xdist", "-p", "no:cov")
MEMORY_BYTES: Final = 6 * 2**30
"""What a child may map: a changed formula may ask for any shape."""


class Ordered:
    """Runs the named tests in their order, and tells which failed; one that does not end ends all."""

    def __init__(self, names: list[str], seconds: Mapping[str, float]) -> None:
        self.place = {name: place for place, name in enumerate(names)}
        self.seconds = seconds
        self.answer = ""

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Leave the named ones."""
        items[:] = sorted((one for one in items if one.nodeid in self.place), key=lambda one: self.place[one.nodeid])

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """Leave a test forty times its seconds: a changed condition may never hold."""
        signal.setitimer(signal.ITIMER_REAL, 60.0 + 40.0 * self.seconds[item.nodeid])
        try:
            return (yield)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0.0)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note the first that fails."""
        if report.failed and not self.answer:
            self.answer = report.nodeid


class Recorded:
    """Runs all tests in an order drawn by chance; tells the processor time of each, and which functions it called."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder, self.seed = f"{folder / 'simulator'}{os.sep}", seed
        self.answer: dict[str, dict[str, Any]] = {}
        self.failed: set[str] = set()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note what fails."""
        if report.failed:
            self.failed.add(report.nodeid)

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """A test that needs another one before it is found here."""
        random.Random(self.seed).shuffle(items)  # noqa: S311  an order

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """Watch one test, its fixtures included, with nothing remembered from those before it."""
        for name, module in list(sys.modules.items()):
            if name.startswith(("simulator.", "tests.")):
                for value in list(vars(module).values()):
                    getattr(value, "cache_clear", lambda: None)()
        called: set[CodeType] = set()

        def note(frame: FrameType, event: str, _: object) -> None:
            if event == "call":
                called.add(frame.f_code)

        started = time.process_time()
        sys.setprofile(note)
        try:
            return (yield)
        finally:
            sys.setprofile(None)
            here = [code for code in called if code.co_filename.startswith(self.folder)]
            calls = sorted({(code.co_filename.removeprefix(self.folder), code.co_firstlineno) for code in here})
            seconds, failed = time.process_time() - started, item.nodeid in self.failed
            self.answer[item.nodeid] = {"seconds": seconds, "calls": calls, "failed": failed}


@dataclass
class Child:
    """Tests that run in a process of their own."""

    pid: int
    pipe: int
    until: float
    """When it is ended, by the monotonic clock."""
    text: bytes = b""

    def read(self) -> bool:
        """Take what it has written; whether that was the last of it."""
        data = os.read(self.pipe, 1 << 20)
        self.text += data
        return not data

    def ended(self) -> tuple[int, Any] | None:
        """Exit code of pytest and what its plugin tells; None where the child was ended or ended itself."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        os.close(self.pipe)
        return tuple(json.loads(self.text)) if self.text else None


def start(folder: Path, arguments: list[str], plugin: Ordered | Recorded, limit_seconds: float) -> Child:
    """Run these files' tests in a checkout."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writer)
        return Child(pid, reader, time.monotonic() + limit_seconds)
    try:
        os.setsid()
        os.close(reader)
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
        with Path(os.devnull).open("r+b") as nothing:
            for stream in (0, 1, 2):
                os.dup2(nothing.fileno(), stream)
        os.chdir(folder)
        sys.path.insert(0, str(folder))
        sys.dont_write_bytecode = True
        code = int(pytest.main([*OPTIONS, *arguments], plugins=[plugin]))
        with os.fdopen(writer, "w") as out:
            json.dump([code, plugin.answer], out)
    finally:
        os._exit(0)


def first_ended(children: list[Child]) -> Child:
    """Wait for one that has ended or whose time is over."""
    while True:
        patience = min(one.until for one in children) - time.monotonic()
        ready, _, _ = select.select([one.pipe for one in children], [], [], max(patience, 0.0))
        for one in children:
            if (one.pipe in ready and one.read()) or time.monotonic() > one.until:
                return one
