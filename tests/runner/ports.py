"""Ports in a row that the system gives nobody else as long as a test holds them."""

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from simulator.lab.runner.engine import held_port

ATTEMPTS = 100


@contextmanager
def held_ports(count: int) -> Iterator[list[int]]:
    """So many ports, the first of the system's choosing; programs that set SO_REUSEADDR can listen on them."""
    for _ in range(ATTEMPTS):
        with ExitStack() as held:
            first = held.enter_context(held_port())
            ports = list(range(first, first + count))
            if all(_hold(held, port) for port in ports[1:]):
                yield ports
                return
    raise AssertionError(f"no {count} free ports in a row")


def _hold(held: ExitStack, port: int) -> bool:
    """Whether a port could be had."""
    probe = held.enter_context(socket.socket())
    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        probe.bind(("127.0.0.1", port))
    except (OSError, OverflowError):
        return False
    return True
