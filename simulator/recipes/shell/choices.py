"""Commands whose text depends on a branch: every text is followed. Nothing is executed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final, cast

from simulator.frameworks.values import PlainValue
from simulator.recipes.shell.launch import TrainingCommand
from simulator.recipes.shell.values import EMPTY, Cause, Piece, Value, alike, one_of, split_fields

_LAUNCHES: Final = re.compile(
    r"(?<![\w-])(?:torchrun|deepspeed|msrun|accelerate|python[0-9.]*|[\w-]+cli|swift|megatron|composer)(?![\w-])|\.(?:py|sh|slurm|sbatch)(?!\w)"
)
"""Parts of a command's text that start a training."""
_END: Final = re.compile(r"\.py(?!\w)|(?<!\S)-m(?!\S)")
"""The end of a launcher's own words."""
_FARTHEST: Final = 64
"""Most words before the script of a launcher."""
DEEPEST_CHOICE: Final = 4
"""Most nested choices within one command."""


def commands(argv: Sequence[Value], separators: Sequence[str]) -> list[list[Value]]:
    """Return the command once per text of the first undecided word up to its script; empty without such a word."""
    if len(separators) > 1:
        return []
    starts = any(map(_starts, argv))
    for number, word in enumerate(argv[:_FARTHEST]):
        for text in (texts := _texts(word, whole=number == 0)):
            if _LAUNCHES.search(text.text) or (starts and (number == 0 or _is_option(text))):
                return [[*argv[:number], *split_fields(text, separators[0]), *argv[number + 1 :]] for text in texts]
        if _is_end(word):
            break
    return []


def texts(text: Value) -> list[Value]:
    """Return a text that is read as a script once per value of its first undecided part; empty without one."""
    for number, piece in enumerate(text.pieces):
        if piece.known and _END.search(piece.text):
            break
        if any(_LAUNCHES.search(part.text) or _is_option(part) for part in piece.alternatives):
            return [_with(text, number, piece, part) for part in piece.alternatives]
    return []


def _is_end(word: Value) -> bool:
    """Return whether the arguments of the script follow."""
    return word.known and (word.text.endswith(".py") or word.text == "-m")


def _starts(word: Value) -> bool:
    return word.known and _LAUNCHES.search(word.text) is not None


def _is_option(text: Value) -> bool:
    """Return whether a text holds options of a launcher, not the value of one."""
    return text.text.lstrip().startswith("--")


def _texts(word: Value, *, whole: bool) -> list[Value]:
    """Return a word once per text of its first undecided part; a quoted word is not split, unless it is a list."""
    for number, piece in enumerate(word.pieces):
        if piece.alternatives and whole and all(not other.text for other in word.pieces if other is not piece):
            return [part.inserted(quoted=False) for part in piece.alternatives]
        if piece.alternatives and not piece.quoted:
            return [_with(word, number, piece, part) for part in piece.alternatives]
    return []


def _with(value: Value, number: int, piece: Piece, part: Value) -> Value:
    return Value((*value.pieces[:number], *part.inserted(quoted=piece.quoted).pieces, *value.pieces[number + 1 :]))


def causes_of(values: Iterable[Value]) -> frozenset[Cause]:
    """Return what the texts of words depend on."""
    return frozenset(cause for value in values for cause in value.causes)


def distinct(launches: Sequence[TrainingCommand]) -> list[TrainingCommand]:
    """Return the different launches among those of one command's texts."""
    by_content: dict[tuple[object, ...], TrainingCommand] = {}
    for launch in launches:
        by_content.setdefault(_content_of(launch), launch)
    return list(by_content.values())


def unlike(known: Sequence[TrainingCommand], more: Sequence[TrainingCommand]) -> list[TrainingCommand]:
    """Return the launches among `more` that are not known already."""
    contents = {_content_of(launch) for launch in known} if more else set()
    return [launch for launch in distinct(more) if _content_of(launch) not in contents]


def every_round(
    first: Sequence[TrainingCommand], second: Sequence[TrainingCommand], causes: frozenset[Cause]
) -> list[TrainingCommand]:
    """Return the launches of one round of a loop with open words where another round has others."""
    if [len(launch.arguments) for launch in first] != [len(launch.arguments) for launch in second]:
        return [*first, *unlike(first, second)]
    return [_either(launch, other, causes) for launch, other in zip(first, second, strict=True)]


def _either(launch: TrainingCommand, other: TrainingCommand, causes: frozenset[Cause]) -> TrainingCommand:
    """Return a launch with open words where another one differs."""

    def word(left: Value, right: Value | None) -> Value:
        differs = right is None or not alike(left, right)
        return one_of([left, EMPTY if right is None else right], left.text, left.line, causes) if differs else left

    def words(left: Mapping[str, PlainValue], right: Mapping[str, PlainValue]) -> dict[str, PlainValue]:
        ours, others = cast("dict[str, Value]", left), cast("dict[str, Value]", right)
        return {name: word(ours.get(name, EMPTY), others.get(name)) for name in {**ours, **others}}

    if _content_of(launch) == _content_of(other) and launch.environment == other.environment:
        return launch
    return replace(
        launch,
        script=word(cast("Value", launch.script), cast("Value", other.script)),
        arguments=tuple(map(word, launch.arguments, other.arguments)),
        options=words(launch.options, other.options),
        spread=words(launch.spread, other.spread),
        environment=words(launch.environment, other.environment),
    )


def _content_of(launch: TrainingCommand) -> tuple[object, ...]:
    """Return the content of a launch, regardless of its launcher's name."""
    options = tuple(sorted((name, value.text) for name, value in launch.options.items()))
    arguments = tuple(value.text for value in launch.arguments)
    # The words in front state the processes only where no launcher does.
    alone = launch.launcher == "python"
    spread = tuple(sorted((name, value.text) for name, value in launch.spread.items())) if alone else ()
    return launch.launcher, launch.script.text, arguments, options, spread, launch.in_front if alone else None
