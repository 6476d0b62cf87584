"""Starts ranks as torchrun does: in sessions of their own, ended when one fails. Needs no torch.

Usage: fake_torchrun.py RANKS COMMAND...
"""

import os
import signal
import subprocess
import sys
import time


def main() -> int:
    count, command = int(sys.argv[1]), sys.argv[2:]
    ranks = [
        subprocess.Popen(
            command,
            env={**os.environ, "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(count)},
            start_new_session=True,
        )
        for rank in range(count)
    ]
    while any(rank.poll() is None for rank in ranks):
        if any(rank.poll() for rank in ranks):
            for rank in ranks:
                rank.terminate()
        time.sleep(0.02)
    codes = [rank.returncode for rank in ranks]
    if signal.SIGKILL in [-code for code in codes]:
        print("  exitcode  : -9 (pid: 1)", flush=True)  # noqa: T201  the launch's log
    return 1 if any(codes) else 0


if __name__ == "__main__":
    sys.exit(main())
