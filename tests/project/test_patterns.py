"""No regular expression of the package grows faster than its text: each meets its own literals, repeated.

A pattern such as `{.*?}` is searched for from every brace to the end of a text of open braces: quadratic, which on a
megabyte takes minutes. One that begins with `[\\w$]{0,200}` tries 200 characters from each: seconds. No time
is judged, only how it grows, and what a character takes beside a plain pattern, in processor time of this thread.
"""

import ast
import importlib
import pkgutil
import re
import time
from collections.abc import Callable, Iterator
from functools import cache
from itertools import chain
from pathlib import Path

import simulator

PACKAGE = Path(simulator.__file__).parent
SEARCHING = {"search", "finditer", "findall", "sub", "subn", "split"}
AT_START = {"match", "fullmatch"}
SHORT, TIMES = 5000, 4
MOST_GROWTH = 2.4 * TIMES
"""Of four times the text: a linear pattern takes four times as long, a quadratic one 16 times; those that look ahead by
a bounded length, 4,000 at most, have reached it in the short text."""
NOISE_SECONDS = 5e-5
"""What a short text may take unmeasured."""
SLOW_SECONDS = 2.0
"""Of a short text: no pattern needs it."""
TRIES = 6
QUICK_STEPS = 20.0
"""Of what a character takes with the plain pattern: a search from each takes a hundred at least."""
PLAIN = re.compile(r"(?:aa|ab)\d")
MOST_STEPS = 100.0
"""Of what a character takes with the plain pattern: the slowest of the package takes some 30 times that."""


_CALLS = (ast.Attribute, ast.Call)


def nodes() -> dict[Path, list[ast.AST]]:
    """What calls a pattern, by file."""
    files = sorted(PACKAGE.rglob("*.py"))
    trees = ((file, ast.parse(file.read_text(encoding="utf-8"))) for file in files)
    return {file: [node for node in ast.walk(tree) if isinstance(node, _CALLS)] for file, tree in trees}


def uses(files: dict[Path, list[ast.AST]]) -> dict[tuple[str, str], set[str]]:
    """What is done with patterns, by the file that does it and the name they have there."""
    done: dict[tuple[str, str], set[str]] = {}
    for file, every in files.items():
        for node in every:
            match node:
                case ast.Attribute(value=ast.Name(id=owner), attr=attribute) if attribute in SEARCHING | AT_START:
                    done.setdefault((str(file), owner), set()).add(attribute)
    return done


def patterns() -> dict[tuple[str, int], set[str]]:
    """Text and flags of every pattern, with what is done with it: those that modules name, and those in calls."""
    found: dict[tuple[str, int], set[str]] = {}
    files = nodes()
    used = uses(files)
    for info in pkgutil.walk_packages([str(PACKAGE)], "simulator."):
        try:
            module = importlib.import_module(info.name)
        except ImportError:  # an extra that is not installed
            continue
        for name, value in vars(module).items():
            if isinstance(value, re.Pattern) and isinstance(value.pattern, str):
                found.setdefault((value.pattern, value.flags), set()).update(used.get((str(module.__file__), name), ()))
    for node in chain.from_iterable(files.values()):
        match node:
            case ast.Call(
                func=ast.Attribute(value=ast.Name(id="re"), attr=name), args=[ast.Constant(value=str(text)), *_]
            ) if name != "compile":
                found.setdefault((text, re.compile(text).flags), set()).add(name)
    # A pattern of a table, or one that only a loop names, may be searched for.
    return {pattern: done or {"search"} for pattern, done in found.items()}


def literals(pattern: str, flags: int) -> list[str]:
    """Runs of literal characters of a pattern, and those that its classes name, in their order."""
    runs: list[str] = [""]

    def walk(items: object) -> None:
        for item in items:  # type: ignore[attr-defined]  # re's own tree has no types
            kind, value = item if isinstance(item, tuple) and len(item) == 2 else (None, item)
            name = str(kind)
            if name == "LITERAL":
                runs[-1] += chr(value)
                continue
            runs.append("")
            if name == "IN":
                runs[-1] += "".join(chr(one) for op, one in value if str(op) == "LITERAL")
            elif name in {"MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT"}:
                walk(value[2])
            elif name == "SUBPATTERN":
                walk(value[3])
            elif name == "BRANCH":
                for branch in value[1]:
                    walk(branch)
            elif name in {"ASSERT", "ASSERT_NOT"}:
                walk(value[1])
            runs.append("")

    walk(re._parser.parse(pattern, flags))  # type: ignore[attr-defined]
    return list(dict.fromkeys(run for run in runs if run))


def texts(pattern: str, flags: int) -> set[str]:
    """What is repeated: each run alone, with a letter or a space behind, and all of them but the last."""
    runs = literals(pattern, flags)
    whole = "".join(runs)
    return {f"{run}{behind}" for run in runs for behind in ("", "a", " ", "\n")} | {whole, whole[:-1]} | {"a", " ", "0"}


def seconds(use: Callable[[str], object], text: str) -> float:
    start = time.thread_time()
    use(text)
    return time.thread_time() - start


@cache
def plain_seconds() -> float:
    return min(seconds(PLAIN.search, "a" * SHORT) for _ in range(50))


def is_quick(use: Callable[[str], object], part: str, length: int) -> bool:
    """Whether a text takes about what the plain pattern does: one that grows faster takes hundreds of its steps."""
    return seconds(use, (part * length)[:length]) < QUICK_STEPS * plain_seconds() * length / SHORT


def steps(use: Callable[[str], object], part: str) -> float:
    """What a character takes, in those of the plain pattern: the fewest of a few tries."""
    text, fewest = (part * SHORT)[:SHORT], float("inf")
    for _ in range(TRIES):
        fewest = min(fewest, seconds(use, text) / plain_seconds())
        if fewest < MOST_STEPS:
            break
    return fewest


def growth(use: Callable[[str], object], part: str, length: int) -> float:
    """Times longer that several times the text takes: the smallest of a few tries, as a busy machine disturbs some."""
    smallest = float("inf")
    for _ in range(TRIES):
        short = seconds(use, (part * length)[:length]) + NOISE_SECONDS
        if short > SLOW_SECONDS:
            break  # several times the text would take minutes, or for ever
        smallest = min(smallest, seconds(use, (part * length * TIMES)[: length * TIMES]) / short)
        if smallest < MOST_GROWTH:
            break
    return smallest


def user(pattern: re.Pattern[str], name: str) -> Callable[[str], object]:
    if name in {"sub", "subn"}:
        return lambda text: getattr(pattern, name)("", text)
    return lambda text: [*getattr(pattern, name)(text)] if name == "finditer" else getattr(pattern, name)(text)


def too_steep(pattern: tuple[str, int], uses: set[str], length: int) -> Iterator[tuple[str, str]]:
    """Yield uses of a pattern, each with a text that makes it grow faster than the text, or slow from the start."""
    compiled = re.compile(*pattern)
    parts = sorted(filter(None, texts(*pattern)))
    for name in sorted(uses):
        use = user(compiled, name)
        for part in parts:
            slow = not is_quick(use, part, length)
            if slow and (growth(use, part, length) >= MOST_GROWTH or steps(use, part) >= MOST_STEPS):
                yield name, part


def test_patterns_grow_with_their_text() -> None:
    every = patterns()
    assert len(every) > 100
    assert any("search" in uses for uses in every.values())
    assert not {pattern: steep for pattern, uses in every.items() if (steep := [*too_steep(pattern, uses, SHORT)])}


def test_a_quadratic_pattern_is_noticed() -> None:
    assert any(too_steep((r"\{.*?\}", re.compile("").flags | re.DOTALL), {"search"}, 1000))


def test_a_pattern_that_tries_every_start_is_noticed() -> None:
    assert any(too_steep((r"[\w${}]{0,800}(?:train|tune)", re.compile("").flags), {"search"}, SHORT))
