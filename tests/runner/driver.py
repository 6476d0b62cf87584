"""Runs `simulate validate` with ranks that train nothing: `python -m tests.runner.driver validate ...`."""

from simulator.show.cli import lab
from simulator.show.cli.main import run
from tests.runner.fakes import FakeEngine

if __name__ == "__main__":
    vars(lab)["_engine"] = lambda *_: FakeEngine()
    run()
