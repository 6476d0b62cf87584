"""What the whole suite shares: one thread a process, the same examples every time, and lanes for launches.

A file is a worker's as a whole. Files that launch processes, and files that share what takes long to make, stand in
lanes, each the work of one worker: no more launches run at a time than there are lanes of them.
"""

import gc
import importlib
import os
import sys
import warnings
from contextlib import suppress
from typing import Final

import pytest
from _pytest.runner import runtestprotocol
from hypothesis import settings
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

# Before numpy and torch are imported: workers and launches share the cores, and threads that wait for each other spin.
for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_name] = "1"

# Every worker and every process that a test starts would compile the same files again; git ignores what is kept.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# Tests leave few cycles, and looking for them in all that thousands of tests hold takes a twentieth of the suite.
gc.set_threshold(20_000, 20, 20)

# How long one example takes says how busy the machine is. The suite tries the same examples every time, so that only a
# change can make it red; `--hypothesis-profile free` tries new ones, and more of them.
settings.register_profile("suite", deadline=None, max_examples=25, derandomize=True)
settings.register_profile("free", deadline=None, max_examples=1000, print_blob=True)
settings.load_profile("suite")


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers without advice, which takes half of their time, for files that look at none."""
    from tests.check.bare import without_advice  # noqa: PLC0415  not in the process that leads the workers

    without_advice(monkeypatch)


@pytest.fixture
def closed_switches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Estimates without what nobody said of their switches, for files that do not look at it."""
    from tests.check.bare import without_open_switches  # noqa: PLC0415  as above

    without_open_switches(monkeypatch)


SHORT: Final = {
    "answers/": ("bare", "closed_switches"),
    "check/": ("bare",),
    "frameworks/": ("bare", "closed_switches"),
    "memory/": ("bare", "closed_switches"),
    "scenario/": ("bare", "closed_switches"),
    "specs/": ("bare", "closed_switches"),
}
"""Files or folders whose tests ask for figures: answers leave out there what is not looked at, which takes most of the
time. A test of what is left out, of ranges and verdicts over it, or of whole answers is marked `full_answer`."""
LANES: Final = {
    "launches of the trainer, traces": (
        "trainer/",
        "trace/",
        "probe/test_command.py",
        "docs/test_cuda_sweep.py",
        "project/test_regenerate.py",
    ),
    "launches of the runner": ("runner/",),
    "accuracy": ("calibration/test_pages.py", "calibration/test_sources.py", "calibration/test_accuracy.py"),
}
"""Files or folders that one worker runs: their tests start processes that train, or share what takes long to make.
A worker whose tests need torch imports it twice, for itself and for the process that others are forked from."""
LONG: Final = (
    "directions/",
    "pages/",
    "calibration/",
    "project/",
    "answers/",
    "check/",
    "frameworks/test_switches.py",
    "emit/",
    "search/",
    "probe/",
    "test_api.py",
    "report/",
    "pricing/",
    "memory/",
    "cli/",
)
"""What takes longest of the rest begins first."""
OWN: Final = ("benchmarks", "simulator", "tools")
"""Packages of the checkout that are no tests."""
SHOWN_SECONDS: Final = 0.005
"""Shortest preparation that `--durations` shows."""


def _lane(place: str) -> str:
    """The lane of a file of this folder; empty for one that launches nothing."""
    return next((name for name, files in LANES.items() if place.startswith(files)), "")


class Lanes(LoadScopeScheduling):  # type: ignore[misc]  # xdist has no types
    """Sends a file to one worker as a whole, and all files of a lane to one."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.split("::", 1)[0]
        return _lane(file.removeprefix("tests/")) or file


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Lanes:
    config.option.loadscopereorder = False  # the order below, not that of the files with most tests
    return Lanes(config, log)


@pytest.hookimpl(trylast=True)  # hypothesis writes nothing before its own
def pytest_sessionstart(session: pytest.Session) -> None:
    """Compile all modules of a fresh checkout once: each worker imports them from another on, and finds the others'.

    Likewise hypothesis reads the constants of each module once.
    """
    workers: dict[str, str | int] = getattr(session.config, "workerinput", {})
    if not workers or session.config.args != session.config.getini("testpaths"):
        return
    root = session.config.rootpath
    share = int(str(workers["workerid"]).removeprefix("gw")) / int(workers["workercount"])
    names = [".".join(file.relative_to(root).with_suffix("").parts) for file in sorted(root.glob("tests/**/test_*.py"))]
    with warnings.catch_warnings(action="error"):
        for name in _from(share, names):
            with suppress(Exception, pytest.skip.Exception):  # the collection tells of it
                importlib.import_module(name)
    own = sorted(name for name in sys.modules if name.partition(".")[0] in OWN)
    with suppress(ImportError, AttributeError):  # an older one reads none
        constants = importlib.import_module("hypothesis.internal.constants_ast").constants_from_module
        for name in _from(share, own):
            constants(sys.modules[name])


def _from(share: float, names: list[str]) -> list[str]:
    """All names, from one part of the way through them on."""
    first = int(len(names) * share)
    return names[first:] + names[:first]


def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """Tell the leading process of a test's call alone, and of what fails, is skipped or takes long before and after.

    Telling it of each test's start, preparation, cleaning up and end takes more of thousands of tests than they do.
    """
    if not hasattr(item.config, "workerinput"):
        return None
    for report in runtestprotocol(item, log=False, nextitem=nextitem):
        if report.when == "call" or not report.passed or report.duration >= SHOWN_SECONDS:
            item.ihook.pytest_runtest_logreport(report=report)
    return True


def pytest_collection_finish() -> None:
    """Leave what all tests hold out of every later collection of cycles."""
    gc.collect()
    gc.freeze()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    files = {path: path.relative_to(config.rootpath / "tests").as_posix() for path in {item.path for item in items}}
    places = {item: files[item.path] for item in items}
    for item, place in places.items():
        if item.get_closest_marker("launch") and not _lane(place):
            raise pytest.UsageError(f"tests/{place}: launches, but stands in no lane of tests/conftest.py")
        if isinstance(item, pytest.Function) and not item.get_closest_marker("full_answer"):
            left_out = (fixture for start, fixtures in SHORT.items() if place.startswith(start) for fixture in fixtures)
            item.fixturenames = [*dict.fromkeys((*item.fixturenames, *left_out))]
    firsts = (*LANES.values(), *((start,) for start in LONG))
    order = {
        place: next((n for n, starts in enumerate(firsts) if place.startswith(starts)), len(firsts))
        for place in files.values()
    }
    items.sort(key=lambda item: order[places[item]])
