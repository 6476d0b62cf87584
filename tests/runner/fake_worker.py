"""A rank that trains nothing: it behaves as `FAKE_RANKS` says of its layout, and leaves a result like a real one.

`FAKE_RANKS` is a JSON object from a layout (`tp2pp1dp1`) to what its rank 1 does; `hang` is for all of them.
`FAKE_STEPS` is another, to the seconds of its steps. It imports little, so that a test is quick.
"""

import json
import os
import signal
import socket
import sys
import time
from pathlib import Path

from simulator.lab.trainer.process import rank_from_environment

MIB = 2**20


def main() -> int:
    path = Path(sys.argv[1])
    job = json.loads(path.read_text(encoding="utf-8"))
    layout = job["layout"]
    sizes = [layout[f"{name}_parallel"] for name in ("tensor", "pipeline", "data")]
    rank = rank_from_environment(os.environ, sizes[0] * sizes[1] * sizes[2])
    name = "tp{}pp{}dp{}".format(*sizes)
    does = json.loads(os.environ.get("FAKE_RANKS", "{}")).get(name, "ok")
    print(f"rank {rank} of {name} begins", flush=True)  # noqa: T201  the launch's log
    if "SLURM_JOB_ID" in os.environ:
        assert os.environ["LOCAL_RANK"] == os.environ["SLURM_LOCALID"]
        meet_at((os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])), rank, int(os.environ["WORLD_SIZE"]))
    meet(path.parent, rank, int(os.environ["WORLD_SIZE"]))
    time.sleep(600.0 if does == "hang" else float(os.environ.get("FAKE_SECONDS", "0")))
    if does != "ok" and rank == 1:
        return fail(does, path.parent)
    stage = rank // (sizes[0] * sizes[2])
    base = float(json.loads(os.environ.get("FAKE_STEPS", "{}")).get(name, 0.5))
    result = {
        "rank": rank,
        "stage": stage,
        "layers": layout["stage_layers"][stage],
        "base_bytes": 20 * MIB,
        "peak_bytes": (60 + rank) * MIB,
        "peak_parts": {},
        "reserved_bytes": None,
        "device_bytes": int(os.environ["FAKE_DEVICE_MIB"]) * MIB if "FAKE_DEVICE_MIB" in os.environ else None,
        "step_seconds": [
            base + float(os.environ.get("FAKE_SLOPE", "0.01")) * step + 0.1 * rank for step in range(job["steps"])
        ],
        "losses": [],
        "forward_seconds": None,
        "backward_seconds": None,
        "device_name": "a processor",
        "versions": {"torch": "none"},
    }
    (path.parent / f"rank-{rank}.json").write_text(json.dumps(result), encoding="utf-8")
    return 0


def meet(folder: Path, rank: int, count: int) -> None:
    """Wait for the other ranks, as those that train do: none ends before the last one has begun."""
    (folder / f"begun-{rank}").touch()
    while not all((folder / f"begun-{other}").exists() for other in range(count)):
        time.sleep(0.02)


def meet_at(address: tuple[str, int], rank: int, count: int) -> None:
    """Wait for the other ranks at the address of the first, where torch.distributed would meet them."""
    if rank == 0:
        with socket.create_server(("", address[1])) as server:
            for other in [server.accept()[0] for _ in range(count - 1)]:
                other.close()
        return
    while True:
        try:
            with socket.create_connection(address) as first:
                first.recv(1)
        except ConnectionRefusedError:  # not there yet
            time.sleep(0.02)
        else:
            return


def fail(how: str, folder: Path) -> int:
    if how == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "half":
        (folder / "rank-1.json").write_text('{"rank": 1, "sta', encoding="utf-8")
    if how == "crash":
        raise RuntimeError("a rank broke")
    if how == "oom":
        sys.stderr.write("simulate-trainer: rank 1: out-of-memory: OutOfMemoryError: tried to allocate 2 GiB\n")
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main())
