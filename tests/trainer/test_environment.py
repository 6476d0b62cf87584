"""Which rank a process is, by what its launcher set."""

import subprocess
import sys

import pytest

from simulator.errors import InputError
from simulator.lab.trainer.process import rank_from_environment
from tests.project.tree import ROOT

MEETING = {"MASTER_ADDR": "node-1", "MASTER_PORT": "29500"}
SLURM = {"SLURM_PROCID": "3", "SLURM_NTASKS": "4", "SLURM_LOCALID": "1"}


def test_torchrun_says_which_rank_it_is() -> None:
    environment = MEETING | {"RANK": "2", "WORLD_SIZE": "4", "LOCAL_RANK": "0"} | SLURM
    assert rank_from_environment(environment, 4) == 2
    assert environment["LOCAL_RANK"] == "0"


def test_one_device_needs_no_launcher() -> None:
    environment = dict(SLURM)  # also inside a job of several tasks
    assert rank_from_environment(environment, 1) == 0
    assert environment["WORLD_SIZE"] == "1"


@pytest.mark.parametrize(
    ("environment", "names"),
    [
        (MEETING, "RANK is not set"),
        (MEETING | SLURM, "RANK is not set"),
        ({"RANK": "0", "WORLD_SIZE": "4", "MASTER_ADDR": "node-1"}, "MASTER_PORT is not set"),
        (MEETING | {"RANK": "0", "WORLD_SIZE": "8"}, "WORLD_SIZE 8; the job is for 4"),
        (MEETING | {"RANK": "first", "WORLD_SIZE": "4"}, "RANK 'first'"),
        (MEETING | {"RANK": "4", "WORLD_SIZE": "4"}, "RANK '4'"),
    ],
)
def test_what_is_missing_or_wrong_is_named(environment: dict[str, str], names: str) -> None:
    with pytest.raises(InputError, match=names):
        rank_from_environment(dict(environment), 4)


def test_a_process_that_leaves_has_written_all_and_does_nothing_more() -> None:
    code = (
        "import atexit; from simulator.lab.trainer.process import leave; "
        "atexit.register(print, 'farewell'); print('said'); leave(3)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (3, "said\n", "")
