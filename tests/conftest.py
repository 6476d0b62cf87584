"""What the whole suite shares: one thread a process, no deadlines of single examples, and lanes for launches.

With `-n 4 --dist loadgroup` a file is a worker's as a whole. Files that launch processes share two lanes, each a
worker's from the start, so that no more than two launches run at a time.
"""

import os
from typing import Final

import pytest
from hypothesis import settings

# Before numpy and torch are imported: workers and launches share the cores, and threads that wait for each other spin.
for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_name] = "1"

# How long one example takes says how busy the machine is.
settings.register_profile("suite", deadline=None)
settings.load_profile("suite")

LANES: Final = {
    "launches of the trainer": ("trainer/test_worker.py", "probe/test_command.py", "docs/test_cuda_sweep.py"),
    "launches of the runner": ("runner/",),
}
"""Files or folders whose tests start processes that train, or stand in for ones that do."""
LONG: Final = ("calibration/test_pages.py", "probe/test_run.py", "docs/test_traced.py", "trace/", "project/")
"""What takes longest of the rest begins first."""


def pytest_configure(config: pytest.Config) -> None:
    config.option.loadscopereorder = False


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    places = {item: item.path.relative_to(config.rootpath / "tests").as_posix() for item in items}
    for item, place in places.items():
        lane = next((name for name, files in LANES.items() if place.startswith(files)), "")
        if item.get_closest_marker("launch") and not lane:
            raise pytest.UsageError(f"tests/{place}: launches, but stands in no lane of tests/conftest.py")
        if config.pluginmanager.hasplugin("xdist"):
            item.add_marker(pytest.mark.xdist_group(lane or place))
    firsts = (*(files for files in LANES.values()), *((start,) for start in LONG))
    order = {
        item: next((n for n, files in enumerate(firsts) if place.startswith(files)), len(firsts))
        for item, place in places.items()
    }
    items.sort(key=lambda item: order[item])
