"""Start of the command line, as `simulate` and as `python -m simulator`; `show.cli.main` has the commands."""

import gc
import os


def run() -> None:
    """Run the command line; Ctrl-C ends it quietly from its first import on.

    Garbage collection is off at first: it would take a sixth of one search. Commands turn it on.
    """
    gc.disable()
    try:
        from simulator.show.cli.main import run as start  # noqa: PLC0415  what may be interrupted

        start()
    except KeyboardInterrupt:
        # Nothing is half written that a normal end would finish; a traceback says nothing to whoever pressed the keys.
        os._exit(130)


if __name__ == "__main__":
    run()
