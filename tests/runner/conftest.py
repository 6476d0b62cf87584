"""What every test of launches needs."""

import signal
from collections.abc import Iterator

import pytest

from tests.runner.trees import as_at_a_terminal


@pytest.fixture(autouse=True)
def usual_signals() -> Iterator[None]:
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.getsignal(number) for number in numbers}
    as_at_a_terminal()
    yield
    for number, handler in before.items():
        signal.signal(number, handler)
