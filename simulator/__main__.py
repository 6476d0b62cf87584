"""`python -m simulator` is the command `simulate`."""

from simulator.cli.main import run

run()
