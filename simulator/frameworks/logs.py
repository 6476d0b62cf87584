"""Forms of training logs that a framework registers, and how lines, printed configurations and data sets are read."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Literal

from simulator.errors import InputError
from simulator.files import read_table, reading
from simulator.frameworks.arguments import Arguments
from simulator.frameworks.flags import FlagTable
from simulator.question.recipe import Recipe
from simulator.question.specs.documents import require_regular
from simulator.question.units import GIB, KIB
from simulator.question.vocabulary import FrameworkName
from simulator.records import Record

_TABLE: Final = "_samples"
"""Data sets by name, each with an upper bound of its samples' length in tokens and its reason."""


def note_samples(arguments: Arguments, name: str) -> None:
    """Remark that batches are padded only to their longest sample, so that full batches are an upper bound."""
    entry = arguments.entry(name)
    shown = entry.spelled.lstrip("-") if entry is not None else name
    usual = entry is not None and entry.name in arguments.defaults
    said = f"{shown}, {entry.text} by default," if entry is not None and usual else shown
    message = f"{said} bounds the samples: a batch is as long as its longest one, and full ones are priced"
    arguments.remark("activations-bound", "warning", message, *(() if usual else (name,)), bound="length")


def with_longest_sample(arguments: Arguments, run: Recipe, names: Collection[str]) -> Recipe:
    """Return a run of padded batches, its sequence length limited to its data sets' longest sample."""
    bounds = [_bounds().get(name) for name in names]
    known = [bound for bound in bounds if bound is not None]
    bound = max(known) if known and len(known) == len(bounds) else None
    if bound is None or (run.seq_length is not None and run.seq_length <= bound):
        return run
    allowed = "any number" if run.seq_length is None else f"{run.seq_length:,}"
    message = (
        f"assumed: samples of {', '.join(sorted(names))[:120]} have at most {bound:,} tokens, of which full batches "
        f"are priced; the recipe allows {allowed}"
    )
    arguments.remark("longest-sample", "warning", message, fix="--seq-length N")
    return replace(run, seq_length=bound)


@functools.cache
def _bounds() -> Mapping[str, int]:
    return {row["name"]: int(row["longest_tokens"]) for row in read_table(__file__, _TABLE)}


OUT_OF_MEMORY: Final = re.compile(
    r"OutOfMemoryError|(?:CUDA|NPU|HIP|GPU) out of memory|[Oo]ut of memory error on|ResourceExhaustedError"
)
"""Messages of PyTorch and Paddle when device memory runs out."""
_MAXIMUM_BYTES: Final = 2 * GIB
_LONGEST: Final = 64 * KIB
_HIGHEST: Final = 2**31
_COLOUR: Final = re.compile(r"\x1b\[[0-9;]{0,20}[A-Za-z]")
# torchrun --tee ([default7]:), other launchers ([rank31]:) and srun --label (12: ), also one behind the other.
_PREFIX: Final = re.compile(r"(?:\s{0,8}(?:\[(?:default|rank)\d{1,6}\]:|\d{1,6}:(?=\s))){1,4} ?")
_WHOLE: Final = re.compile(r"[0-9]{1,15}", re.ASCII)
_NUMBER: Final = re.compile(r"[0-9]{1,15}(?:\.[0-9]{0,25})?(?:[eE][+-]?[0-9]{1,3})?", re.ASCII)


class LogLine(Record):
    """One line of a log."""

    where: str
    """File and line number, as an error names it."""
    number: int
    rank: str
    """Prefix of the rank that printed the line; empty in a log of a single rank."""
    text: str
    """The line without prefix and colours."""


class LoggedStep(Record, kw_only=True):
    """One logged interval of steps."""

    iteration: int
    """Iteration at the end of the interval."""
    seconds: float
    rate: float | None = None
    """Logged speed per device in the log's own unit; None without one."""
    batch: int | None = None
    """Sequences per step; None where the line does not state them."""


class LoggedMemory(Record, kw_only=True):
    """Highest memory figures that any rank of a run reported; None where not reported."""

    allocated_bytes: float | None = None
    reserved_bytes: float | None = None
    """Memory that the framework's allocator reserved from the driver."""


class LoggedRun(Record, kw_only=True):
    """One run in a log."""

    begin: LogLine
    last: LogLine
    """Line of the last step; without one the first line."""
    arguments: Arguments | None
    """Arguments that the run printed; None where it printed none."""
    steps: tuple[LoggedStep, ...]
    memory: LoggedMemory = LoggedMemory()
    reported_after: int = 0
    """Iteration of the memory report; steps up to it are slower."""
    global_batch_size: int | None = None
    """Sequences per step, where they are not among the arguments."""
    shape: Mapping[str, Any] | None = None
    """ModelSpec fields of the model configuration that the log prints; None without one."""
    stated: str = ""
    """The model as the log names it."""
    samples_per_step: float | None = None
    """Sequences per step computed from the logged speeds, which may contradict the arguments."""
    notes: tuple[str, ...] = ()
    """Sentences on the meaning of the figures."""
    out_of_memory: LogLine | None = None
    """Line that reports the lack of memory that ended the run; None otherwise."""


class LogForm(Record, kw_only=True):
    """One framework's log format."""

    is_own: Callable[[str], bool]
    """Whether a line is one that only this framework writes."""
    runs: Callable[[Iterable[LogLine], FlagTable], Iterable[LoggedRun]]
    """Return the runs that logged steps or ran out of memory. Raises InputError naming the line."""
    read: Callable[[Arguments], Recipe]
    """Return the run that the printed arguments describe, without remarks on unread ones."""
    rate: Literal["tflops", "tokens"]
    """Unit of a step's logged speed, per device: model TFLOP/s, or tokens per second."""
    tables: tuple[str, ...] = ()
    """Tables of names that only logs use, which precede the framework's own."""


class StepLogForm(Record, kw_only=True):
    """Format of a log that shows steps and some facts of the run, but not all its arguments."""

    name: str
    """The trainer as answers name it: `the Hugging Face trainer`."""
    framework: FrameworkName
    """Profile that its runs are priced with."""
    order: int
    """Position among the step log forms when a log is recognised, lowest first."""
    begins: re.Pattern[str]
    """A line that only this trainer writes."""
    step: re.Pattern[str]
    """A step's line, with groups `at` and one of `seconds`, `rate` (steps per second) or `tokens` (per second and
    device), optionally `total` (steps of the run) and `reserved` (GiB)."""
    facts: tuple[re.Pattern[str], ...]
    """Lines with facts of the run, one per group; `family` and `parameters` identify the model."""
    columns: Callable[[str, Mapping[str, str]], dict[str, Any]]
    """Return the columns of a measured row for the facts; the first argument is the place that errors name."""
    note: str = ""
    """Sentence on the assumptions behind the columns."""


def counts(where: str, facts: Mapping[str, str], names: Mapping[str, str]) -> dict[str, Any]:
    """Return counts by column for the facts present in the log. Raises InputError naming the line."""
    return {column: parse_count(where, name, facts[name]) for column, name in names.items() if facts.get(name)}


def log_lines(path: Path) -> Iterator[LogLine]:
    """Yield the lines of a log in order, progress bars too, each cut at 64 KiB. Raises InputError for a bad file."""
    with reading(path):
        require_regular(path)
        if path.stat().st_size > _MAXIMUM_BYTES:
            raise InputError(f"{path}: too large; at most {_MAXIMUM_BYTES} bytes")
        with path.open("rb") as stream:
            number, complete = 0, True
            while data := stream.readline(_LONGEST):
                number += complete
                for text in data.decode("utf-8", errors="replace").split("\r") if complete else ():
                    yield _line(path, number, text.rstrip("\n"))
                complete = data.endswith(b"\n")


def _line(path: Path, number: int, text: str) -> LogLine:
    text = _COLOUR.sub("", text)
    prefix = _PREFIX.match(text)
    rank = prefix.group().strip() if prefix else ""
    return LogLine(f"{path}:{number}", number, rank, text[prefix.end() :] if prefix else text)


def longer_line(known: LogLine | None, line: LogLine) -> LogLine:
    """Return the longer of two lines; an exception's name often stands alone before its message."""
    return line if known is None or len(line.text) > len(known.text) else known


def parse_count(where: str, name: str, text: str) -> int:
    """Parse a count. Raises InputError naming the line and the name."""
    digits = text.replace(",", "")
    if not _WHOLE.fullmatch(digits) or int(digits) > _HIGHEST:
        raise InputError(f"{where}: {name} is '{text[:40]}'; expected a whole number up to {_HIGHEST}")
    return int(digits)


def number(where: str, name: str, text: str) -> float:
    """Parse the positive number that `text` begins with. Raises InputError naming the line and the name."""
    match = _NUMBER.match(text.strip())
    value = float(match.group()) if match else 0.0
    if not 0.0 < value < float("inf"):
        raise InputError(f"{where}: {name} is '{text.strip()[:40]}'; expected a number above zero")
    return value


_BEGINS: Final = re.compile(r"\b[A-Z][A-Za-z0-9_]{1,40}Config \{\s*$")
_STAMP: Final = re.compile(r"^(?:\[[^\]]{1,40}\] ?){1,4}- ?")
_MOST_LINES: Final = 2000
_PLAIN: Final = frozenset({"gpt2", "gpt_neox", "gptj", "opt", "bloom", "falcon", "mpt", "gpt_bigcode", "starcoder2"})
"""Families whose feed-forward networks are not gated."""
_ROTARY: Final = frozenset({"gpt_neox", "falcon", "starcoder2", "gptj"})
"""Families in `_PLAIN` with rotary position embeddings."""


@dataclass(slots=True)
class LoggedConfig:
    """A logged configuration, filled line by line."""

    value: dict[str, Any] = field(default_factory=dict)
    where: str = ""
    """File and line where it begins."""
    _open: list[str] = field(default_factory=list)

    def take(self, line: LogLine) -> bool:
        """Take a line and return whether it is part of a configuration. Raises InputError for invalid JSON."""
        if not self._open:
            if not _BEGINS.search(line.text):
                return False
            self._open, self.where = ["{"], line.where
            return True
        text = _STAMP.sub("", line.text)
        self._open.append(text)
        if text.startswith("}") or len(self._open) >= _MOST_LINES:
            joined, self._open = "\n".join(self._open), []
            try:
                value = json.loads(joined)
            except (ValueError, RecursionError) as error:
                raise InputError(
                    f"{self.where}: the model's configuration is not JSON up to line {line.number}"
                ) from error
            self.value = value if isinstance(value, dict) else {}
        return True

    def shape(self) -> Mapping[str, Any] | None:
        """Return the shape that the configuration states, None without one. Raises InputError for a wrong field."""
        return _shape(self.value, self.where) if self.value else None


def _shape(config: Mapping[str, Any], where: str) -> Mapping[str, Any]:

    def count(*names: str) -> int | None:
        for name in names:
            value = config.get(name)
            if value is not None and (not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= 2**31):
                raise InputError(f"{where}: {name} is {str(value)[:40]}; expected a whole number")
            if value:
                return int(value)
        return None

    def needed(*names: str) -> int:
        if (value := count(*names)) is None:
            raise InputError(f"{where}: the model's configuration has no {names[0]}")
        return value

    experts = count("num_experts", "num_local_experts", "moe_num_experts")
    kind, tied = config.get("model_type"), config.get("tie_word_embeddings")
    heads, hidden = needed("num_attention_heads", "n_head"), needed("hidden_size", "n_embd")
    plain = kind in _PLAIN
    width = count("intermediate_size", "n_inner") or (4 * hidden if plain else None)
    shape: dict[str, Any] = {
        "num_hidden_layers": needed("num_hidden_layers", "n_layer"),
        "hidden_size": hidden,
        "intermediate_size": width,
        "num_attention_heads": heads,
        "num_key_value_heads": count("num_key_value_heads") or heads,
        "head_dim": count("head_dim"),
        "vocab_size": count("vocab_size"),
        "tie_word_embeddings": tied if isinstance(tied, bool) else None,
        "num_experts": experts or 0,
        "gated": not plain,
        "norm": "layer_norm" if plain else "rms_norm",
    }
    if experts:
        shape["num_experts_per_tok"] = count("num_experts_per_tok", "moe_k")
        shape["moe_intermediate_size"] = count("moe_intermediate_size") or width
    if plain:
        shape |= {"activation": "gelu", "rotary": kind in _ROTARY}
        shape |= dict.fromkeys(("attention_bias", "attention_output_bias", "mlp_bias"), True)
        shape["learned_positions"] = 0 if kind in _ROTARY else count("n_positions", "max_position_embeddings") or 0
    return shape
