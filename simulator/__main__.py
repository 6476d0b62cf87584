"""`python -m simulator` is the command `simulate`."""

from simulator.show.cli.main import run

run()
