"""Process that traces one stage: a request as JSON on stdin, the result of `lab.trace.stage` as JSON on stdout."""

from __future__ import annotations

import sys
import warnings

from simulator.errors import one_line
from simulator.lab.trainer.job import TraceRequest, from_json, to_json
from simulator.lab.trainer.process import end_with_parent, leave


def main() -> int:
    """Run the trace and return the exit code."""
    request = from_json(TraceRequest, sys.stdin.read())
    warnings.simplefilter("ignore")
    try:
        # Imported here, so that a missing or broken torch is an error like any other.
        from simulator.lab.trace.stage import trace_stage  # noqa: PLC0415

        document = to_json(trace_stage(request), indent=None)
    except Exception as error:  # noqa: BLE001 - whatever it is, the caller reads of it in one line
        print(one_line(f"{type(error).__name__}: {error}"), file=sys.stderr, flush=True)  # noqa: T201 - the answer
        return 1
    print(document, flush=True)  # noqa: T201 - the answer
    return 0


if __name__ == "__main__":
    end_with_parent()
    leave(main())
