"""Launch script as a whole: its training commands, and the assumptions of reading it.

Of the text `TP=$1; torchrun train.py --tp $TP` with the setting `1=2`, `read_script` returns one launch, of `train.py`
with the arguments `--tp 2`; without the setting, the argument depends on `1`.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise, zip_longest
from typing import Final

from simulator.budget import charge
from simulator.errors import InputError, UndecidedError
from simulator.frameworks.values import Cause, TooLargeError
from simulator.question.origin import Remark, Severity
from simulator.recipes.shell import arithmetic
from simulator.recipes.shell import launch as launching
from simulator.recipes.shell import values as bash
from simulator.recipes.shell.assignments import NAME, assigned_names
from simulator.recipes.shell.launch import TrainingCommand, find_launch
from simulator.recipes.shell.source import HOLES, Source, check_length
from simulator.recipes.shell.state import SURROUNDINGS, Machine, NotFollowed, maybe, open_words
from simulator.recipes.shell.values import BLANKS, EMPTY, Files, Piece, Truth, Value
from simulator.recipes.shell.walk import Walk
from simulator.recipes.shell.words import Test

_MAXIMUM_LAUNCHES: Final = 256


def run_command(walk: Walk, argv: list[Value], line: int) -> Truth:
    """Follow the words of a command that is none of the script's functions; return whether it would succeed."""
    name = argv[0].text
    if name in ("builtin", "command", "exec") and len(argv) > 1 and argv[1].text[:1] != "-":
        status = walk.called(argv[1:], line)
        if name == "exec":
            walk.machine.ends(line)
        return status
    builtin = _BUILTINS.get(name)
    if builtin is not None:
        return builtin(walk, argv, line)
    if name not in _SILENT:
        walk.machine.prints(None)
    truth = _started(walk, argv, line)
    if truth is not None:
        return truth
    bash.change_files(walk.machine.state.files, argv, line, walk.stdin)
    if _WITHOUT_EFFECT.fullmatch(name):
        return True
    if argv[0].known and re.match(r"--?[A-Za-z]", name):
        remark = (
            f"{name[:60]} begins a command of its own: the line before does not continue here, as after a "
            "comment or a backslash with a space behind it; these flags do not reach the launch"
        )
        walk.machine.remark("broken-line", "warning", remark, line, "end the line before with a backslash")
    return frozenset({Cause(line, " ".join(value.text for value in argv)[:80])})


# Launches and other scripts.

_SCRIPT_NAME: Final = re.compile(rf"[\w${{}}.-]+\.(?:{'|'.join(launching.SCRIPTS)})")  # the name of a script or job
_VARIABLE: Final = re.compile(r"\A[^A-Za-z_]*+([A-Za-z_]\w*).*+", re.DOTALL | re.ASCII)
"""The first variable of an unknown text: N in `$((N / 8))`."""
_LAUNCHES: Final = re.compile(r"(?<![a-z])(?:launch|train|run_)")  # names of scripts that launch when included
_OTHER_STARTERS: Final = frozenset(["aprun", "flux", "ibrun", "jsrun", "lrun", "parallel", "prun", "xargs", "yhrun"])
"""Commands that start what stands behind their options and whose options are not read."""
_SILENT: Final = frozenset(["mkdir", "rm", "cp", "mv", "ln", "touch", "chmod", "sleep", "shopt", "trap", ":", "true"])
"""Commands that print nothing."""
_WITHOUT_EFFECT: Final = re.compile(
    r"mkdir|rm|cp|mv|ln|touch|chmod|chown|env|ls|sleep|wait|date|ulimit|shopt|:|true|pip3?|umask|find|xargs"
    r"|hostname|which|ray|module|nvidia-smi|npu-smi|ixsmi|trap"
)  # commands assumed to succeed and to change nothing else that matters


def _started(walk: Walk, argv: list[Value], line: int) -> Truth | None:
    """Record a command that launches, or follow the text or script that it starts; None for others."""
    machine = walk.machine
    marks = sorted(machine.state.exported.items())
    contents = ((name, maybe(name, machine.lookup(name, 0), causes)) for name, causes in marks)
    exported = {name: content for name, content in contents if isinstance(content, Value)}
    passed = launching.passed_environment(exported, argv, line)
    new = {name: value for name, value in passed.items() if exported.get(name) is not value}
    new = {name: value if value.known else machine.preset(name, line) or value for name, value in new.items()}
    stated = {**machine.environment, **machine.settings}
    outside = {**machine.scheduled, **{name: bash.text_value(text, 0) for name, text in stated.items()}}
    environment = {**outside, **passed, **new}
    spread = {**machine.spread, **launching.process_counts(argv)}
    launch = find_launch(argv, environment, line)
    if launch is not None and (counts := launching.started_by(launch)):
        argv, spread = [launch.script, *launch.arguments], {**spread, **counts}
    elif launch is not None:
        _take(walk, dataclasses.replace(launch, spread=spread))
        if launch.launcher == "python":  # it may make the configuration of a later one
            bash.change_files(machine.state.files, argv, line, None)
        return True
    place = _started_script(argv)
    if (inner := launching.shell_text(argv) or _text_on_input(walk, argv)) is not None:
        text, parameters = inner
        follow: Callable[[], Truth | None] = partial(walk.apart, partial(_shell, walk, text, parameters, line))
    elif place < len(argv):
        if bash.base_name(argv[0].text) == "sbatch" and (job := machine.text_of(argv[place], line)) is not None:
            new |= launching.submitted_variables(argv[:place], job.text)
        follow = partial(_start, walk, argv[place:], line)
    else:
        _note_unread_starter(machine, argv, line)
        return None
    outer = machine.state.snapshot(), machine.state.exported, machine.spread
    machine.state.variables = {**outer[0], **new}
    machine.state.exported = {**outer[1], **dict.fromkeys(new, frozenset[Cause]())}
    machine.spread = spread
    if any(word.text.partition("=")[0] in launching.VARIABLE_FILES for word in argv[: launching.FARTHEST]):
        machine.may_set_any(" ".join(word.text for word in argv), (), line)
    truth = follow()
    machine.state.variables, machine.state.exported, machine.spread = outer
    machine.state.is_lent = True
    return truth


def _take(walk: Walk, launch: TrainingCommand) -> None:
    machine, line = walk.machine, launch.line
    files = machine.state.files.copy()

    def written(name: str) -> Value | None:
        return files.text(name, partial(machine.on_disk, files.disk_folder, name, line))

    launch = dataclasses.replace(launch, conditions=machine.around, written=written, folder=files.disk_folder)
    walk.launches.append(launch)
    if len(walk.launches) > _MAXIMUM_LAUNCHES:
        raise InputError(f"{machine.file}:{line}: more than {_MAXIMUM_LAUNCHES} launches")


def _text_on_input(walk: Walk, argv: Sequence[Value]) -> tuple[Value, Sequence[Value]] | None:
    """Return the here document that `bash` or `bash -s` runs; None for others."""
    alone = argv[0].text in launching.SHELLS and all(word.text[:1] == "-" for word in argv[1:])
    return (walk.stdin, ()) if alone and walk.stdin is not None else None


def _shell(walk: Walk, text: Value, parameters: Sequence[Value], line: int) -> Truth:
    """Follow a text in a shell of its own."""
    walk.machine.state = walk.machine.state.started(tuple(parameters))
    return walk.evaluate(text, line)


def _started_script(argv: Sequence[Value]) -> int:
    """Return the index of a script that a command starts, as `bash FILE` or FILE; the length without one."""
    wrapped = False
    for number, value in enumerate(argv[: launching.FARTHEST]):
        if _SCRIPT_NAME.fullmatch(_shown_name(value)) and (number == 0 or wrapped):
            return number
        wrapped = wrapped or bash.base_name(value.text) in launching.WRAPPERS | launching.SHELLS | launching.QUEUES
        if not wrapped:
            break
    return len(argv)


def _note_unread_starter(machine: Machine, argv: Sequence[Value], line: int) -> None:
    """Note a script that a command starts of which nobody knows what it does with it: `jsrun -n 4 bash FILE`."""
    starts = bash.base_name(argv[0].text) in _OTHER_STARTERS
    for before, word in pairwise(argv[: launching.FARTHEST]):
        name = _shown_name(word)
        if _SCRIPT_NAME.fullmatch(name) and (
            starts or before.text == "--" or bash.base_name(before.text) in launching.SHELLS
        ):
            text = machine.text_of(word, line)
            other = NotFollowed(line, "by a command that is not read", "" if text is None else text.text)
            machine.not_followed.setdefault(name, other)


def _start(walk: Walk, argv: Sequence[Value], line: int) -> Truth | None:
    """Follow a script that a command starts, with the exported variables; None where it cannot be read."""
    machine = walk.machine
    is_open = any(not value.known and not (value.pieces[0].known and value.pieces[0].text) for value in argv[1:])
    text = machine.text_of(argv[0], line)
    name = _shown_name(argv[0])
    if text is None:
        spread = "starter" in machine.spread
        machine.not_followed.setdefault(name, NotFollowed(line, "that is not at hand", spread=spread))
        return None
    parameters = tuple(value.text for value in argv[1:])
    again = [begun for whole, begun in machine.started if whole == text.text]
    if again and (is_open or parameters in again or len(again) > 1):
        return True  # a job that submits itself for later
    machine.started.append((text.text, parameters))
    launches = len(walk.launches)
    outer, machine.state = machine.state, machine.state.started(tuple(argv[1:]))
    calls, machine.calls = machine.calls, [""] * len(machine.calls)
    truth = walk.include(text)
    outer.files = machine.state.files.copy(outer.files.folder)
    machine.state, machine.calls = outer, calls
    machine.started.pop()
    if len(walk.launches) == launches:
        machine.not_followed.setdefault(name, NotFollowed(line, "that starts no training by these words", text.text))
    return truth


_DATA: Final = re.compile(r"(?:^|[_-])data(?:sets?)?(?:[_.-]|$)")
"""In the name of a script that lists data sets, and sets no size."""


def _include(walk: Walk, argv: Sequence[Value], line: int) -> Truth:
    """Follow `source FILE ARGUMENTS`; a file that cannot be read makes the variables that it may set unknown."""
    machine = walk.machine
    name = argv[1].text if len(argv) > 1 else ""
    written = name == "/dev/stdin" or machine.state.files.wrote(name)
    if not name or (SURROUNDINGS.search(name) and not written):
        return True
    text = walk.stdin if name == "/dev/stdin" else machine.text_of(argv[1], line)
    if (text is None or not text.has_text) and _DATA.search(name.rpartition("/")[2]):
        return True
    if text is None:
        machine.may_set_any(name, (), line, bash.name_below(argv[1])[:100])
        if _LAUNCHES.search(shown := _shown_name(argv[1])):
            machine.not_followed.setdefault(shown, NotFollowed(line, "that is not at hand"))
        return True
    outer = machine.state.positional, machine.state.shifted
    if len(argv) > 2:
        machine.state.positional, machine.state.shifted = tuple(argv[2:]), 0
    truth = walk.include(text)
    if len(argv) > 2:
        machine.state.positional, machine.state.shifted = outer
    return truth


def _shown_name(target: Value) -> str:
    """Return the last part of a file's path, with `${NAME}` for unknown parts."""
    shown = "".join(piece.text if piece.known else _VARIABLE.sub(r"${\1}", piece.text) for piece in target.pieces)
    return bash.base_name(shown)[:80]


# Built-ins that set variables, parameters and flow.

_OPTIONS: Final = {"allexport": "a", "errexit": "e", "nounset": "u", "pipefail": "pipefail"}
"""Options of `set` that decide what runs."""


def _eval(walk: Walk, argv: list[Value], line: int) -> Truth:
    space = bash.text_value(" ", line)
    return walk.evaluate(bash.joined(part for value in argv[1:] for part in (value, space)), line)


def _exit(walk: Walk, argv: list[Value], line: int) -> Truth:
    walk.machine.ends(line)
    return _status(walk, argv)


def _status(walk: Walk, argv: list[Value]) -> Truth:
    """Return the status that `exit` or `return` states, or that of the command before."""
    if len(argv) < 2 or argv[1].text == "$?":
        return walk.machine.last
    return argv[1].text == "0" if argv[1].known else argv[1].causes


def _leave(walk: Walk, argv: list[Value], _line: int) -> Truth:
    word, state = argv[0].text, walk.machine.state
    state.flow = "return" if word == "return" else "break" if word == "break" else "continue"
    if word == "return":
        return _status(walk, argv)
    state.levels = int(argv[1].text) if len(argv) > 1 and argv[1].text in ("2", "3", "4") else 1
    return True


def _set(walk: Walk, argv: list[Value], line: int) -> Truth:
    """Follow `set -aeu`, `set -o pipefail`, `set -- WORDS` and `set WORDS`."""
    state = walk.machine.state
    rest = list(argv[1:])
    while rest:
        word = rest[0]
        if not word.known:
            state.positional, state.shifted = open_words(word.causes, line), 0
            return True
        if word.text in ("--", "-") or not re.fullmatch(r"[-+][A-Za-z]+", word.text):
            rest = rest[1:] if word.text in ("--", "-") else rest
            if rest or word.text == "--":
                state.positional, state.shifted = tuple(rest), 0
            return True
        named = rest[1].text if word.text.endswith("o") and len(rest) > 1 else ""
        options = {*word.text[1:], _OPTIONS.get(named, "")} & set(_OPTIONS.values())
        state.options = state.options | options if word.text[0] == "-" else state.options - options
        rest = rest[2 if named else 1 :]
    return True


def _shift(walk: Walk, argv: list[Value], line: int) -> Truth:
    """Follow `shift N`: nothing happens where fewer parameters are left; an unknown number leaves none known."""
    state, count = walk.machine.state, argv[1] if len(argv) > 1 else bash.text_value("1", 0)
    before = state.positional
    number = int(count.text) if count.known and re.fullmatch(r"\d{1,3}", count.text, re.ASCII) else None
    if number is None or (before is not None and bash.open_causes(before, number)):
        causes = count.causes or bash.open_causes(before or (), number) or frozenset({Cause(line, "shift")})
        state.positional = None if before is None else open_words(causes, line)
        return causes
    if before is None:
        state.shifted += number
        return frozenset({Cause(line, "#")})
    if number > len(before):
        return False
    charge(len(before))
    state.positional = before[number:]
    return True


def _read(walk: Walk, argv: list[Value], line: int) -> Truth:
    """Follow `read X` and `mapfile X`, and `getopts SPEC X` of unknown words: what they set only the run knows."""
    machine, command = walk.machine, argv[0].text
    if command == "read" and (truth := _read_known(walk, argv, line)) is not None:
        return truth
    shown = " ".join(value.text for value in argv)[:80]
    if command == "getopts" and (len(argv) > 3 or machine.state.positional is not None):
        shown = f"options by {shown}"  # of parameters that are known, unlike the script's own
    causes = frozenset({Cause(line, shown)})
    names = [word.text for word in argv[1:] if NAME.fullmatch(word.text)]
    for name in (*names, *(("OPTARG", "OPTIND") if command == "getopts" else ("REPLY", "MAPFILE"))):
        machine.assign(name, bash.hole(f"${name}", line, causes), line)
    walk.stdin = None
    return causes


_ALL_OF_IT: Final = (["", "-d", "-r"], ["", "-rd"], ["", "-d"])  # options, sorted, with which `read` ends at no line


def _read_known(walk: Walk, argv: list[Value], line: int) -> bool | None:
    """Follow `read -r A B` of known text: a word to each name, the rest to the last; None of other text.

    `read -r -d '' A` takes all of it, and fails at its end.
    """
    if walk.stdin is not None and sorted(word.text for word in argv[1:-1]) in _ALL_OF_IT:
        walk.machine.assign(argv[-1].text, walk.stdin, line)
        walk.stdin = None
        return False
    text, content = walk.stdin, walk.machine.state.variables.get("IFS", bash.text_value(BLANKS, line))
    names = [word.text for word in argv[1:] if word.text != "-r"]
    signs = content.text if isinstance(content, Value) and content.known else "?!"
    if text is None or not text.known or "\\" in text.text or not names or not all(map(NAME.fullmatch, names)):
        return None
    if signs.strip(BLANKS) and len(signs) > 1:
        return None
    first, _, rest = text.text.partition("\n")
    walk.stdin = bash.text_value(rest, line)
    blank = bool(signs) and not signs.strip(BLANKS)
    words = first.split(None if blank else signs, len(names) - 1) if signs else [first]
    for name, word in zip_longest(names, words, fillvalue=""):
        walk.machine.assign(name, bash.text_value(word.strip(BLANKS) if blank else word, line), line)
    return bool(text.text)


def _getopts(walk: Walk, argv: list[Value], line: int) -> Truth:
    """Follow `getopts SPEC X` over known parameters of which each option is a word: `-a -b VALUE`."""
    machine, words, index = walk.machine, walk.machine.state.positional, walk.machine.state.variables.get("OPTIND")
    place = int(index.text) if isinstance(index, Value) and index.text.isdecimal() else int(index is None)
    if words is None or bash.open_causes(words) or len(argv) != 3 or not (argv[1].known and argv[2].known) or not place:
        return _read(walk, argv, line)
    word = words[place - 1] if place <= len(words) else EMPTY
    option, takes = word.text[1:], f"{word.text[1:]}:" in argv[1].text
    ends = word.text[:1] != "-" or word.text in ("-", "--")
    is_read = len(option) == 1 and option.isalnum() and option in argv[1].text and (not takes or place < len(words))
    if not word.known or not (ends or is_read):
        return _read(walk, argv, line)
    if not ends:
        machine.assign("OPTARG", words[place] if takes else None, line)
    place += int(word.text == "--") if ends else 1 + takes
    machine.assign("OPTIND", bash.text_value(str(place), line), line)
    machine.assign(argv[2].text, bash.text_value("?" if ends else option, line), line)
    return not ends


def _printf(walk: Walk, argv: list[Value], line: int) -> Truth:
    if len(argv) > 2 and argv[1].text == "-v" and NAME.fullmatch(argv[2].text):
        walk.machine.assign(argv[2].text, bash.hole(f"${argv[2].text}", line, [Cause(line, "printf -v")]), line)
    else:
        walk.machine.prints(None)
    return True


def _let(walk: Walk, argv: list[Value], line: int) -> Truth:
    number = bash.text_value("0", line)
    for value in argv[1:]:
        number = walk.words.number(value, value.text, line)
    return number.text != "0" if number.known else number.causes


def _test(walk: Walk, argv: list[Value], line: int) -> Truth:
    tokens = [word for value in argv[1:] for word in bash.split_fields(value)]
    return Test(walk.machine, walk.words, tokens, line, double=False).truth()


def _cd(walk: Walk, argv: list[Value], line: int) -> Truth:
    """Follow `cd`, `pushd` and `popd`; the folder is known where its path is."""
    machine, files = walk.machine, walk.machine.state.files
    words = [bash.spelled(value) for value in argv[1:] if not re.fullmatch(r"-[PLen]|--", value.text)]
    target = words[0] if words else "~"
    files.folder = f"$({argv[0].text} {line})" if argv[0].text == "popd" or target == "-" else files.path(target)
    machine.assign("OLDPWD", bash.hole("$OLDPWD", line), line)
    machine.assign("PWD", _present(files, line), line)
    return True


def _present(files: Files, line: int) -> Value:
    """Return the present folder as `pwd` prints it."""
    start = bash.hole("$PWD", line, [Cause(line, "PWD")])
    if not files.folder:
        return start
    if files.folder == files.disk_folder:
        return bash.joined([start, bash.text_value(f"/{files.folder}", line)])
    return bash.hole(files.folder, line, [Cause(line, "$(pwd)")])


# Commands whose output follows from the script.


def _pwd(walk: Walk, _argv: list[Value], line: int) -> Truth:
    files = walk.machine.state.files
    walk.machine.prints(_present(files, line) if files.folder else None)
    return True


def _echo(walk: Walk, argv: list[Value], line: int) -> Truth:
    words = argv[1:]
    ends = True
    while words and words[0].known and re.fullmatch(r"-[neE]+", words[0].text):
        if "e" in words[0].text and any("\\" in word.text for word in words):
            walk.machine.prints(None)
            return True
        ends = ends and "n" not in words[0].text
        words = words[1:]
    # A word that may be none has no space of its own.
    spaces = (bash.hole(" ", line, word.causes) if word.open else bash.text_value(" ", line) for word in words)
    parts = [part for number, pair in enumerate(zip(spaces, words, strict=True)) for part in pair[number == 0 :]]
    walk.machine.prints(bash.joined([*parts, bash.text_value("\n", line)] if ends else parts))
    return True


def _expr(walk: Walk, argv: list[Value], line: int) -> Truth:
    texts = [value.text for value in argv[1:]]
    text: Value | None = None
    if all(value.known for value in argv) and all(re.fullmatch(r"-?\d{1,18}|[-+*/%()]", word) for word in texts):
        with suppress(arithmetic.ArithmeticProblemError):
            text = bash.text_value(f"{arithmetic.evaluate(' '.join(texts), lambda _name: 0)}\n", line)
    walk.machine.prints(text)
    return True


def _cut(walk: Walk, argv: list[Value], line: int) -> Truth:
    """Follow `cut -d SIGN -f NUMBER` over a known text."""
    match = _CUT.fullmatch(" ".join(word.text for word in argv[1:]))
    text = walk.stdin if match and all(word.known for word in argv) and walk.stdin and walk.stdin.known else None
    if match is None or text is None:
        walk.machine.prints(None)
        return True
    parts = [(whole, whole.split(match["sign"])) for whole in text.text.removesuffix("\n").split("\n")]
    number = int(match["number"])
    fields = [whole if len(each) == 1 else "".join(each[number - 1 : number]) for whole, each in parts]
    walk.machine.prints(bash.text_value("\n".join(fields) + "\n", line))
    return True


_CUT: Final = re.compile(r"-d ?(?P<sign>.) -f ?(?P<number>[1-9]\d?)", re.ASCII)


def _cat(walk: Walk, argv: list[Value], line: int) -> Truth:
    flags = [word for word in argv[1:] if word.text[:1] == "-" != word.text]
    walk.machine.prints(None if flags else _texts(walk, argv[1:], line))
    return True


def _texts(walk: Walk, files: Sequence[Value], line: int) -> Value | None:
    """Return the texts of files in a row, `-` or no file for what the command reads; None for what is not known."""
    texts: list[Value] = []
    for file in files or (bash.text_value("-", line),):
        if file.text != "-":
            texts.append(walk.machine.text_of(file, line) or bash.hole(file.text, line, file.causes))
            continue
        if walk.stdin is None:
            return None
        texts.append(walk.stdin)
        walk.stdin = EMPTY
    with suppress(TooLargeError):
        return bash.joined(texts)
    return None


def _tee(walk: Walk, argv: list[Value], line: int) -> Truth:
    machine, text = walk.machine, walk.stdin
    for file in (word for word in argv[1:] if word.text[:1] != "-"):
        before = machine.text_of(file, line) if any(word.text in ("-a", "--append") for word in argv) else EMPTY
        machine.state.files.change_target(file, line)
        with suppress(TooLargeError):
            if text is not None and before is not None:
                machine.state.files.write(file.text, bash.joined([before, text]))
    machine.prints(text)
    return True


# Edits by `sed`.

_PRIVATE: Final = HOLES.pattern[2:-2]  # a hole stands in a text that is searched as one private character
_SUBSTITUTION: Final = re.compile(
    rf"""[;\s]*s([/#|,:@!%~+=])                               # s, and the mark between its parts
    ((?:(?!\1)(?:[^\\.*^$\[\]\n{_PRIVATE}]|\\[./$*^"\[\]]))+)  # text to look for, without signs of a pattern
    (\.\*)?\1                                                 # and whatever stands behind it
    ((?:(?!\1)[^\\&\n]|\\[^\w\n{_PRIVATE}])*)\1(g?)[ \t]*(?=[;\n]|\Z)""",
    re.VERBOSE,
)


@dataclasses.dataclass(frozen=True, slots=True)
class _Edit:
    """One command `s/TEXT/other/` of `sed`."""

    pattern: re.Pattern[str]
    other: Sequence[Piece]
    count: int
    """Most times in a line; 0 for all."""


def _sed(walk: Walk, argv: list[Value], line: int) -> Truth:
    """Follow `sed` of commands `s/TEXT/other/` or `s/TEXT.*/other/g`; others may leave anything in their files."""
    scripts: list[Value] = []
    files: list[Value] = []
    in_place = unread = False
    rest = argv[1:]
    while rest:
        word = rest.pop(0)
        if word.text == "-e" and rest:
            scripts.append(rest.pop(0))
        elif word.text[:1] == "-":
            in_place |= re.match(r"-[A-Za-z]*i|--in-place", word.text) is not None
            unread |= not re.fullmatch(r"-i.*|--in-place.*", word.text)
        else:
            files.append(word)
    scripts, files = (scripts, files) if scripts else (files[:1], files[1:])
    edits = [_edits(script) for script in scripts]
    followed = bool(edits) and all(edits) and not unread
    known = [edit for group in edits for edit in group]
    if not in_place:
        text = _texts(walk, files, line) if followed else None
        if text is not None and not files and not text.known:
            text = None  # what is looked for may stand in what is not known
        walk.machine.prints(None if text is None else _edited(text, known, line))
    if not followed and (in_place or any(re.search(r"w[ \t]", script.text) for script in scripts)):
        bash.change_files(walk.machine.state.files, argv, line, None)
    for file in files if in_place else ():
        text = walk.machine.text_of(file, line) if followed and "*" not in file.text else None
        walk.machine.state.files.change_target(file, line)
        if text is not None and (new := _edited(text, known, line)) is not None:
            walk.machine.state.files.write(file.text, new)
    return True


def _edits(script: Value) -> list[_Edit]:
    """Return the edits of a script of `sed`; none for one with other commands."""
    holes: list[Piece] = []
    text = _marked(script, holes)
    edits: list[_Edit] = []
    end = 0
    while end < len(text):
        match = _SUBSTITUTION.match(text, end)
        if match is None:
            return []
        pattern = re.compile(re.escape(re.sub(r"\\(.)", r"\1", match[2])) + (match[3] or ""))
        other = _unmarked(re.sub(r"\\(.)", r"\1", match[4]), holes, script.line)
        edits.append(_Edit(pattern, other, 0 if match[5] else 1))
        end = match.end()
        end += not text[end:].strip(";\n \t") and len(text) - end
    return edits


def _edited(text: Value, edits: Sequence[_Edit], line: int) -> Value | None:
    """Return the text after edits, all at a line; None for one that is too large."""
    holes: list[Piece] = []
    with suppress(TooLargeError):
        for edit in edits:
            marked = _marked(text, holes)
            other = _marked(Value(tuple(edit.other)), holes)
            charge(len(marked))
            rows = (edit.pattern.sub(lambda _: other, row, edit.count) for row in marked.split("\n"))  # noqa: B023
            text = Value(tuple(_unmarked("\n".join(rows), holes, line)))
        return text
    return None


def _marked(text: Value, holes: list[Piece]) -> str:
    """Return a text with a private character for each hole, by its place among the holes."""
    parts = []
    for piece in text.pieces:
        parts.append(piece.text if piece.known else chr(ord(_PRIVATE[0]) + len(holes)))
        holes += [] if piece.known else [piece]
    return "".join(parts)


def _unmarked(text: str, holes: Sequence[Piece], line: int) -> list[Piece]:
    parts = HOLES.split(text)
    return [
        holes[ord(part) - ord(_PRIVATE[0])] if number % 2 else Piece(part, line, quoted=True)
        for number, part in enumerate(parts)
        if part
    ]


_BUILTINS: Final[Mapping[str, Callable[[Walk, list[Value], int], Truth]]] = {
    **dict.fromkeys(("cd", "pushd", "popd"), _cd),
    "eval": _eval,
    "exit": _exit,
    **dict.fromkeys(("return", "break", "continue"), _leave),
    "set": _set,
    "shift": _shift,
    **dict.fromkeys(("read", "mapfile", "readarray"), _read),
    "getopts": _getopts,
    "printf": _printf,
    **dict.fromkeys(("source", "."), _include),
    "test": _test,
    "pwd": _pwd,
    "echo": _echo,
    "cat": _cat,
    "expr": _expr,
    "cut": _cut,
    "let": _let,
    "sed": _sed,
    "tee": _tee,
    "false": lambda _walk, _argv, _line: False,
}


@dataclass(frozen=True, slots=True)
class Script:
    """The result of reading a script."""

    launches: tuple[TrainingCommand, ...]
    assumed_unset: Mapping[str, int]
    """Environment variables read as unset, with the line that reads them."""
    exits: Mapping[int, frozenset[Cause]]
    """Lines where the script may end early, and what that depends on."""
    exit_line: int
    """Line of the `exit` that every path reaches; 0 without one."""
    unused_settings: tuple[str, ...]
    not_followed: Mapping[str, NotFollowed] = field(default_factory=dict)
    """Scripts that are started but not followed to a training, by name."""
    remarks: tuple[Remark, ...] = ()
    """Remarks on lines with unexpected effects, and on lines that are not read."""


OpenFile = Callable[[str, int], str | None]
"""Return the text of a file that a line of the script names, below its folder or one above; None without one."""


def read_script(
    text: str,
    file: str,
    settings: Mapping[str, str],
    environment: Mapping[str, str],
    open_file: OpenFile = lambda _name, _line: None,
) -> Script:
    """Read a shell script and the files that it includes. Raises InputError for text that is not a script."""
    check_length(file, text)
    for name, value in (("the script", text), *settings.items(), *environment.items()):
        if not value.isascii() and HOLES.search(value):
            raise InputError(f"{file}: private-use characters in {name[:40]}")
    required: dict[str, int] = {}  # the line that ends the script by name
    while True:
        example = launching.example_of(text, file, settings)
        machine = Machine(file, settings, environment, launching.scheduled_variables(text), example)
        if example is not None:
            severity: Severity = "warning" if example.documented else "note"
            machine.remark("example-arguments", severity, example.message, example.line, "--set N=VALUE")
        machine.open_file = open_file
        machine.started.append((text, ()))
        machine.required = frozenset(required)
        try:
            launches = _followed(machine, text)
        except UndecidedError:
            if not machine.ended_without - required.keys():
                raise
            launches, machine.state.flow = [], "exit"
        missing = machine.ended_without - required.keys()
        if launches or not missing or machine.state.flow != "exit":
            break
        required |= dict.fromkeys(missing, machine.state.exit_line)
    for name, line in sorted(required.items()):
        remark = f"the script ends where {name[:60]} is not set: taken as set"
        machine.remark("required-variable", "note", remark, line, f"--set {name}=VALUE")
    return Script(
        launches=tuple(launches),
        assumed_unset=machine.assumed_unset,
        exits=machine.exits,
        exit_line=machine.state.exit_line if machine.state.flow == "exit" else 0,
        unused_settings=tuple(sorted(set(settings) - machine.used_settings)),
        not_followed=machine.not_followed,
        remarks=tuple(machine.remarks),
    )


def _followed(machine: Machine, text: str) -> list[TrainingCommand]:
    """Return the launches of a script. Raises InputError for text too large or too deep for a launch script."""
    nothing = machine.capture
    try:
        walk = Walk(machine, Source(machine.file, bash.text_value(text, 1)), [], run_command)
        machine.assigned = assigned_names(walk.source)
        machine.capture = walk.output
        walk.whole()
    except TooLargeError as error:
        raise InputError(f"{machine.file}: a value outgrows every command line; not a launch script") from error
    except RecursionError as error:
        raise InputError(f"{machine.file}: nested too deep for a launch script") from error
    finally:
        machine.capture = nothing
    return walk.launches
