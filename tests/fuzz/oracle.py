"""What must hold of every answer, whatever was asked."""

import io
import json
import math
import re
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import jsonschema

from simulator import budget
from simulator.show.cli.main import cli
from simulator.show.report.schema import schema

OBEYED = re.compile(
    r"[^\n\t -~\u00a0-\ud7ff\ue000-\uffef\U00010000-\U0010ffff]|[\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]"
)
NOT_FINITE = re.compile(r"(?<![\w./'-])(?:nan|inf|infinity)(?![\w./'=-])", re.IGNORECASE)


class WrongAnswerError(AssertionError):
    """An answer that no input may get."""


@dataclass(frozen=True, slots=True)
class Answer:
    code: int
    out: str
    err: str
    cpu_seconds: float
    work: int


@cache
def validator() -> jsonschema.Draft202012Validator:
    return jsonschema.Draft202012Validator(schema())


def answered(args: Sequence[str], stdin: bytes = b"") -> Answer:
    """Run the command line in this process."""
    spent: list[budget.Budget] = []
    made = budget.Budget.__init__

    def counted(self: budget.Budget, *given: Any) -> None:
        made(self, *given)
        spent.append(self)

    streams = sys.stdin, sys.stdout, sys.stderr
    out, err = io.BytesIO(), io.BytesIO()
    sys.stdin = io.TextIOWrapper(io.BytesIO(stdin), encoding="utf-8")
    wrappers = (
        io.TextIOWrapper(out, encoding="utf-8"),
        io.TextIOWrapper(err, encoding="utf-8", errors="backslashreplace"),
    )
    sys.stdout, sys.stderr = wrappers
    budget.Budget.__init__ = counted  # type: ignore[method-assign, assignment]  # to look at what is spent
    started = time.process_time()
    try:
        cli.main(args=list(args), prog_name="simulate")
    except SystemExit as left:
        code = left.code if isinstance(left.code, int) else 99
    finally:
        took = time.process_time() - started
        budget.Budget.__init__ = made  # type: ignore[method-assign]
        for stream in wrappers:
            stream.flush()
            stream.detach()
        sys.stdin, sys.stdout, sys.stderr = streams
    work = max((one.spent for one in spent), default=0)
    return Answer(code, out.getvalue().decode("utf-8", "surrogateescape"), err.getvalue().decode(), took, work)


def judge(args: Sequence[str], answer: Answer, most_seconds: float = math.inf) -> None:
    """Raise WrongAnswerError for what no answer may be; only a machine with time to spare can ask for seconds."""
    form = args[args.index("--format") + 1] if "--format" in args else "table"
    faults = [
        (answer.code not in (0, 1, 2, 3), f"exit {answer.code}: {answer.err[-300:]}"),
        (answer.code == 1 and args[0] not in ("check", "emit"), "exit 1 without a gate"),
        (
            "Traceback" in answer.err or "internal error" in answer.err + answer.out,
            answer.err[-300:] + answer.out[-300:],
        ),
        (answer.err.count("\n") > 3, f"stderr of several lines: {answer.err[:300]}"),
        (len(answer.err) > 3000, "a message of more than 3000 characters"),
        (OBEYED.search(answer.out + answer.err), "a mark that is obeyed"),
        (form != "github" and re.search(r"^\s*::", answer.out, re.MULTILINE), "a line that CI obeys"),
        (answer.cpu_seconds > most_seconds, f"{answer.cpu_seconds:.2f} s of a core"),
        (answer.work > budget.MAXIMUM_WORK + 1, f"{answer.work} units of work"),
    ]
    for wrong, what in faults:
        if wrong:
            raise WrongAnswerError(what)
    if form == "json" and answer.out:
        _judge_json(args, answer)


def _judge_json(args: Sequence[str], answer: Answer) -> None:
    def refuse(word: str) -> float:
        raise WrongAnswerError(f"{word} in JSON")

    value = json.loads(answer.out, parse_constant=refuse)
    if args[0] not in ("check", "estimate", "rank"):
        return
    for error in validator().iter_errors(value):
        raise WrongAnswerError(f"not by the schema: {error.message[:200]}")
    if args[0] == "check":
        failed = [
            one for one in value["results"] if not one["passed"] and (one["estimate"] or one["outcome"] == "refused")
        ]
        if answer.code == 1 and not failed:
            raise WrongAnswerError("exit 1 without a gate")
