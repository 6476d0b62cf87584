"""Settings of a repository for `simulate check`: in `.simulate.yaml`, and in comments `# simulate: ...` of its files.

    hardware: h100-sxm-80g
    files:
      "recipes/70b/*": {nodes: 16, set: {MODEL_SIZE: 70B}, ignore: {megatron-batch: the launcher pads it}}

The nearest file above a recipe counts, up to the root of its repository. What the command line says beats a comment, a
comment beats the file, and of its patterns the last that matches.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import cache
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Final

from simulator.answers.gates import OUTCOMES
from simulator.answers.rules import FRAMEWORK_RULES
from simulator.errors import InputError, SimulateError, did_you_mean, quoted
from simulator.evidence.cluster import cluster
from simulator.files import read_table
from simulator.frameworks.documents import as_text, line_of
from simulator.frameworks.values import root_of
from simulator.question.origin import Origin, Place, Remark
from simulator.question.question import Question, question_of
from simulator.question.scenario.complete import KEYS
from simulator.question.scenario.inputs import BY_INPUT
from simulator.question.scenario.lengths import Lengths
from simulator.question.specs.catalogue import load_model
from simulator.question.specs.documents import UNKNOWN_KEY, Frozen, Limits, Taken, read_limited, validated
from simulator.question.specs.vision import Images
from simulator.question.specs.yaml_text import parse_yaml
from simulator.recipes.check.folders import below
from simulator.recipes.check.verdict import UNMATCHED, Checked, text_of
from simulator.recipes.readers.trainers import OwnTrainer
from simulator.records import Record, field, replace
from simulator.search.rules import RULES

NAME: Final = ".simulate.yaml"
_MOST_BYTES: Final = 1 << 18
_MOST: Final = 500  # most entries of a mapping
_LONGEST_VALUE: Final = 4000
_INPUTS: Final = ("hardware", "nodes", "devices", "model", "seq_length", "images", "stack")
_OF_A_FILE: Final = (*_INPUTS, "lengths", "batching")
IGNORED: Final = "ignored"
"""Rule of the note on a finding that the repository ignores."""
CHANGED: Final = "settings-changed"
"""Rule of the warning on settings or comments that a change brings, which do not count before it is merged."""
_MOST_MATCHED: Final = 500_000  # most pairs of a pattern and a file that are looked at for it
SettingText = Annotated[str, Limits(min_length=1, max_length=200)]
SettingCount = Annotated[int, Limits(ge=1, le=2**27, strict=True)]


def _plain_value(value: object) -> object:
    if not isinstance(value, str | int | float | None) or len(str(value)) > _LONGEST_VALUE:
        raise ValueError(f"must be text up to {_LONGEST_VALUE} characters, a number, true or false")
    return value


SettingValues = Mapping[SettingText, Annotated[Any, Taken("after", _plain_value)]]


class FileSettings(Frozen):
    """What a repository says of some of its files; an empty value says nothing."""

    hardware: SettingText | None = None
    nodes: SettingCount | None = None
    devices: SettingCount | None = None
    model: SettingText | None = None
    seq_length: SettingCount | None = None
    lengths: SettingText | None = None
    """Percentiles, or a file of lengths by its path from the settings file."""
    batching: SettingText | None = None
    images: SettingText | None = None
    stack: SettingText | None = None
    tokenizer: SettingText | None = None
    """Model whose vocabulary the tokenizer has."""
    vocab_size: SettingCount | None = None
    set: Annotated[SettingValues, Limits(max_length=_MOST)] = field(default_factory=dict)
    """Values of variables, arguments and files, as of `--set`."""
    ignore: Annotated[Mapping[SettingText, SettingText], Limits(max_length=_MOST)] = field(default_factory=dict)
    """Reason by rule or outcome that fails no check."""


class RepositorySettings(FileSettings):
    """The content of `.simulate.yaml`; `files` has settings by pattern, in which `*` stands for any characters."""

    exclude: Annotated[tuple[SettingText, ...], Limits(max_length=_MOST)] = ()
    files: Annotated[Mapping[SettingText, FileSettings], Limits(max_length=_MOST)] = field(default_factory=dict)
    trainers: Annotated[Mapping[SettingText, OwnTrainer], Limits(max_length=_MOST)] = field(default_factory=dict)
    """Trainers by pattern of their script's path or name."""


class OwnWords(Record, kw_only=True):
    """What a repository says of one file."""

    question: Question = field(default_factory=Question)
    settings: Mapping[str, str] = field(default_factory=dict)
    ignored: Mapping[str, tuple[str, Place]] = field(default_factory=dict)
    """Reason and place by rule or outcome."""
    trainers: Mapping[str, OwnTrainer] = field(default_factory=dict)
    excluded: Place | None = None
    """Line that leaves the file out."""
    remarks: tuple[Remark, ...] = ()


@cache
def rule_titles() -> Mapping[str, str]:
    """Return what each rule and outcome is about, by its id."""
    titles = {row["rule"]: row["about"] for row in read_table(__file__, "rules")}
    titles |= {rule.id.replace("_", "-"): rule.about for rule in RULES}
    return MappingProxyType(titles | {rule.id: rule.about for rule in FRAMEWORK_RULES})


class _SettingsFile(Record):
    """A settings file, and the folder that its patterns start at."""

    file: Path
    folder: Path
    text: str
    content: RepositorySettings

    def value(self, part: FileSettings, name: str) -> Any:
        """Return a value of a part; a file of lengths by its whole path."""
        value = getattr(part, name)
        beside = self.folder / str(value)[:1000]
        return _shown(beside) if name == "lengths" and value is not None and beside.is_file() else value

    def place(self, *path: str) -> Place:
        """Return the line of a key."""
        return Place(str(self.file), _line(self.text, path))


def _line(text: str, path: tuple[str, ...]) -> int:
    """Return the line of a key; below `files` that of its pattern, or the key's behind it."""
    if len(path) < 2 or path[0] != "files":
        return line_of(text, path)
    lines = text.split("\n")
    key = re.compile(rf"(?:^|[\s\"'{{,]){re.escape(path[1])}[\"']?\s*:")
    before = next((number for number, line in enumerate(lines) if key.search(line)), 0)
    return before + line_of("\n".join(lines[before:]), path[2:])


def read_settings(file: Path, folder: Path | None = None) -> _SettingsFile:
    """Return a settings file for the files below `folder`, by default its own. Raises InputError with line and key."""
    text = read_limited(file, _MOST_BYTES)
    values = parse_yaml(str(file), text)
    try:
        content = validated(str(file), RepositorySettings, {} if values is None else values)
    except InputError as error:
        if not isinstance(error.__cause__, ValueError):
            raise
        listed: Any = error.__cause__  # pydantic's error
        problems = sorted(listed.errors(), key=lambda problem: problem["type"] != UNKNOWN_KEY)
        path = tuple(str(step) for step in problems[0]["loc"] if step != "[key]")
        raise InputError(f"{file}:{_line(text, path)}{str(error).removeprefix(str(file))}") from error
    settings_file = _SettingsFile(file, folder or file.parent, text, content)
    for path, part in (((), content), *((("files", name), part) for name, part in content.files.items())):
        _check_part(settings_file, path, part)
    return settings_file


_CHECKS: Final[Mapping[str, Callable[[str], object]]] = {
    "hardware": cluster,
    "model": load_model,
    "tokenizer": load_model,
    "lengths": Lengths.read,
    "images": Images.read,
    "batching": BY_INPUT["batching"].check,
}


def _check_part(file: _SettingsFile, path: tuple[str, ...], part: FileSettings) -> None:
    """Raise InputError for hardware, a model, or a rule that there is not, and for nodes beside devices."""
    for rule in part.ignore:
        _check_rule(rule, file.place(*path, "ignore", rule))
    files = [((name,), value) for name in _CHECKS if (value := file.value(part, name)) is not None]
    for key, value in (*((("set", name), value) for name, value in part.set.items()), *files):
        _check_inside(str(value), file.place(*path, *key), file.folder / NAME)
    for key, value in files:
        place = file.place(*path, *key)
        try:
            _CHECKS[key[0]](value)
        except SimulateError as error:
            raise InputError(f"{place.file}:{place.line}: {error}") from error
    if part.nodes and part.devices:
        place = file.place(*path, "devices")
        raise InputError(f"{place.file}:{place.line}: nodes and devices exclude each other: give one")


def _check_inside(value: str, place: Place, settings: Path) -> None:
    """Raise InputError for a file outside the repository, of which its own words are no leave to read."""
    try:
        path, root = Path(value).resolve(), root_of(settings).resolve()
        outside = path.exists() and not path.is_dir() and not path.is_relative_to(root)
    except (OSError, ValueError, RuntimeError):
        outside = False
    if outside:
        raise InputError(f"{place.file}:{place.line}: {value[:200]}: leads out of the repository; give it by an option")


def _check_rule(rule: str, place: Place, error: type[InputError] = InputError) -> None:
    known = {*rule_titles(), *(outcome.replace("_", "-") for outcome in OUTCOMES)}
    if rule not in known:
        near = did_you_mean(rule, known) or "; `simulate check --format json` names the rules"
        raise error(f"{place.file}:{place.line}: ignore: unknown rule '{rule[:60]}'{near}")


_COMMENT: Final = re.compile(
    r"(?:^|(?<=[ \t]))(?:#|//)[ \t]*simulate:[ \t]*(ignore\[[^\n]{1,300}|[a-z_]{1,40}=\S{1,200})[ \t]*$", re.MULTILINE
)
_IGNORE: Final = re.compile(r"ignore\[([\w, -]{1,200})\][ \t]*(.*)")


class CommentError(InputError):
    """A wrong comment of one file, which hides no other's verdict."""


def _comments(file: str, text: str) -> tuple[dict[str, tuple[Any, Place]], dict[str, tuple[str, Place]]]:
    """Return the settings and the ignored rules of a file's comments, each with its line. Raises CommentError."""
    values: dict[str, tuple[Any, Place]] = {}
    ignored: dict[str, tuple[str, Place]] = {}
    for match in _COMMENT.finditer(text) if "simulate:" in text else ():
        place = Place(file, text.count("\n", 0, match.start(1)) + 1)
        where, words = f"{file}:{place.line}: # simulate:", match[1].strip()
        name, equals, text = words.partition("=")
        if words.startswith("ignore["):
            ignoring = _IGNORE.fullmatch(words)
            if ignoring is None or not ignoring[2]:
                raise CommentError(f"{where} {words[:60]}: is `ignore[rule] reason`")
            for rule in map(str.strip, ignoring[1].split(",")):
                _check_rule(rule, place, CommentError)
                ignored[rule] = ignoring[2], place
        elif name not in _INPUTS or not equals:
            near = did_you_mean(name, (*_INPUTS, "ignore")) or ";"
            raise CommentError(f"{where} '{name}' is unknown{near} known: ignore[rule] reason, {', '.join(_INPUTS)}")
        elif name != "stack":  # which its reader takes
            values[name] = int(text) if text.isdecimal() and len(text) < 10 else text, place
    return values, ignored


class Repository(Record):
    """Where the words on a file are looked up."""

    base: Path | None = None
    """Checkout of what a change is merged into, whose words count instead; None where nobody else's change is judged.
    """
    root: Path | None = None

    def words(self, file: str) -> OwnWords:
        """Return what is said of a file. Raises InputError for words that are wrong."""
        if "\0" in file:
            return OwnWords()
        path = Path(file).absolute()
        settings = _nearest_settings(self, path.parent, self.folder_of(path).absolute())
        remarks: list[Remark] = []
        values: dict[str, tuple[Any, Place]] = {}
        values_of_run: dict[str, str] = {}
        ignored: dict[str, tuple[str, Place]] = {}
        if settings is not None:
            name = path.relative_to(settings.folder).as_posix()
            matching = {each: part for each, part in settings.content.files.items() if _matches(name, each)}
            parts = [((), settings.content), *((("files", each), part) for each, part in matching.items())]
            for key, part in parts:
                values_of_run |= {each: as_text(value) for each, value in part.set.items() if value is not None}
                ignored |= {each: (why, settings.place(*key, "ignore", each)) for each, why in part.ignore.items()}
                values |= _stated(settings, key, part, values)
            left_out = next((each for each in settings.content.exclude if _matches(name, each)), None)
            if left_out is not None:
                return OwnWords(excluded=settings.place("exclude"))
        own, quiet = _comments(file, text_of(file))
        if self.base is not None and (own or quiet):
            before = _comments(file, text_of(str(self.in_base(path))))
            remarks = list(_new_comments(own, before[0])) + list(_new_comments(quiet, before[1]))
            own = {each: value for each, value in own.items() if _same(value, before[0].get(each))}
            quiet = {each: value for each, value in quiet.items() if _same(value, before[1].get(each))}
        values = _without_other_size(values, own) | own
        return OwnWords(
            question=_question(values),
            settings=values_of_run,
            ignored=ignored | quiet,
            trainers={} if settings is None else settings.content.trainers,
            remarks=tuple(remarks),
        )

    @staticmethod
    def unmatched(file: str) -> Iterator[Remark]:
        """Yield a note on each pattern of a settings file that no possible recipe matches. Raises InputError."""
        settings = read_settings(Path(file))
        patterns = [(each, settings.place("files", each)) for each in settings.content.files]
        patterns += [(each, settings.place("exclude")) for each in settings.content.exclude]
        most = _MOST_MATCHED // (len(patterns) + 1)
        names = [os.path.relpath(path, settings.folder) for path in islice(below(str(settings.folder)), most)]
        for pattern, place in patterns if len(names) < most else ():
            if not any(_matches(name, pattern) for name in names) and not (settings.folder / pattern).exists():
                message = f"the pattern {quoted(pattern)} matches no file that may be a recipe"
                yield Remark(UNMATCHED, "note", message, place)

    def changed(self, file: str) -> Remark | None:
        """Return the warning on a settings file that differs from the base's; None where it does not."""
        path = Path(file).absolute()
        if self.base is None or text_of(file) == text_of(str(self.in_base(path))):
            return None
        message = f"{NAME} is changed here: what it says counts once it is merged, and the base's counts until then"
        return Remark(CHANGED, "warning", message, Place(file, 1))

    def in_base(self, path: Path) -> Path:
        """Return the place of a path of the repository in the base."""
        root = self.folder_of(path).absolute()
        return (self.base or root) / path.relative_to(root) if path.is_relative_to(root) else path

    def folder_of(self, file: str | Path) -> Path:
        """Return the folder that reading of a file stays in."""
        return self.root or _root_above(Path(file).absolute().parent)


def _shown(file: Path) -> str:
    """Return a path as a user in the working folder would write it."""
    return os.path.relpath(file) if file.is_relative_to(Path.cwd()) else str(file)


@cache
def _root_above(folder: Path) -> Path:
    return root_of(folder / NAME)


@cache
def _nearest_settings(repository: Repository, start: Path, root: Path) -> _SettingsFile | None:
    """Return the nearest settings file above a path, within its repository; the base's where there is one."""
    for folder in (start, *start.parents):
        if not folder.is_relative_to(root):
            break
        file = repository.in_base(folder) / NAME if repository.base is not None else folder / NAME
        if file.is_file() and not file.is_symlink():
            return _settings_at(_shown(file), str(folder))
    return None


@cache
def _settings_at(file: str, folder: str) -> _SettingsFile:
    return read_settings(Path(file), Path(folder))


def forget_files() -> None:
    """Forget what was read, before another check."""
    for known in (_root_above, _nearest_settings, _settings_at):
        known.cache_clear()


def _matches(name: str, pattern: str) -> bool:
    """Whether a pattern is of a file or of a folder above it."""
    pattern = pattern.rstrip("/")
    return fnmatchcase(name, pattern) or fnmatchcase(name, f"{pattern}/*")


def _stated(
    file: _SettingsFile, path: tuple[str, ...], part: FileSettings, before: dict[str, tuple[Any, Place]]
) -> dict[str, tuple[Any, Place]]:
    """Return the values of a part; nodes take the place of devices that were said before, and the other way round."""
    values = {name: (file.value(part, name), file.place(*path, name)) for name in _OF_A_FILE if getattr(part, name)}
    if part.tokenizer is not None:
        values["vocab_size"] = load_model(part.tokenizer).vocab_size, file.place(*path, "tokenizer")
    if part.vocab_size is not None:
        values["vocab_size"] = part.vocab_size, file.place(*path, "vocab_size")
    for name in before.keys() - _without_other_size(before, values).keys():
        del before[name]
    return values


def _without_other_size(old: dict[str, tuple[Any, Place]], values: Mapping[str, Any]) -> dict[str, tuple[Any, Place]]:
    sized = not values.keys().isdisjoint(("nodes", "devices"))
    return {name: value for name, value in old.items() if not (sized and name in ("nodes", "devices"))}


def _question(values: Mapping[str, tuple[Any, Place]]) -> Question:
    """Return the question that the values ask. Raises CommentError."""
    plain = {name: value for name, (value, _) in values.items() if name != "vocab_size"}
    if "vocab_size" in values:
        plain["model_fields"] = {"vocab_size": values["vocab_size"][0]}

    def origin(name: str) -> Origin:
        place = values["vocab_size" if name == "model_fields" else name][1] if name != "options" else None
        return Origin("settings", f"{place.file}:{place.line}" if place else "")

    try:
        return question_of(plain, KEYS, origin)
    except InputError as error:
        place = next(iter(values.values()))[1]
        raise CommentError(f"{place.file}:{place.line}: {error}") from error


def _same(value: tuple[Any, Place], before: tuple[Any, Place] | None) -> bool:
    return before is not None and before[0] == value[0]


def _new_comments(own: Mapping[str, tuple[Any, Place]], before: Mapping[str, Any]) -> Iterator[Remark]:
    """Yield a warning on each comment that the base does not have."""
    for name, value in own.items():
        if not _same(value, before.get(name)):
            message = f"the comment that says {name} is new here: it counts once it is merged"
            yield Remark(CHANGED, "warning", message, value[1])


def silenced(result: Checked, ignored: Mapping[str, tuple[str, Place]]) -> Checked:
    """Return a result that passes where all of its errors, or its outcome, are ignored; the verdict stays as it is."""
    if result.passed or not ignored:
        return result
    outcome = result.outcome.replace("_", "-")
    errors = [remark.rule for remark in result.remarks if remark.severity == "error"]
    names = [outcome] if outcome in ignored else errors if errors and all(each in ignored for each in errors) else []
    words = ((name, *ignored[name]) for name in dict.fromkeys(names))
    notes = [Remark(IGNORED, "note", f"{name} is ignored: {why}", place) for name, why, place in words]
    return replace(result, passed=True, known=True, remarks=(*result.remarks, *notes)) if names else result


_OWN_TRAINER: Final = re.compile(r"'([^']{1,200})': flags of no framework")


def skeleton(results: Sequence[Checked], hardware: str, folder: Path) -> str:
    """Return a settings file that asks for each value that the results could not know, once, with empty values."""
    unknown: dict[tuple[str, str], list[Checked]] = {}
    for result in results:
        for pair in _asked(result):
            unknown.setdefault(pair, []).append(result)
    by_pattern: dict[str, dict[str, list[str]]] = {}
    for (key, name), files in unknown.items():
        pattern = _pattern(sorted({_relative(result.file, folder) for result in files}))
        why = f"{len({result.file for result in files})} files" if len(files) > 1 else files[0].name
        line = f"      {_quoted(name)}:  # {why}" if key == "set" else f"    {key}:  # {why}"
        by_pattern.setdefault(pattern, {}).setdefault(key, []).append(line)
    lines = [
        "# What `simulate check` is to know of these files. Fill in what stands empty, leave out what does not matter."
    ]
    lines += [
        f"hardware: {hardware}" if hardware else "hardware:  # of all files",
        "exclude: []",
        "ignore: {}  # rule: reason",
    ]
    lines.append("files:" if by_pattern else "files: {}")
    for pattern, keys in sorted(by_pattern.items()):
        lines.append(f"  {_quoted(pattern)}:")
        for key, own in sorted(keys.items()):
            lines += ["    set:", *sorted(own)] if key == "set" else own[:1]
    reasons = [reason for result in results for reason in result.reasons]
    trainers = {Path(match[1]).name for reason in reasons if (match := _OWN_TRAINER.search(reason))}
    if trainers:
        lines.append('trainers:  # like: a program whose flags are read; flags: own flag: the one that it means, or ""')
        lines += [f"  {_quoted(name)}: {{like: pretrain_gpt.py, flags: {{}}}}" for name in sorted(trainers)]
    return "\n".join(lines) + "\n"


_SET: Final = re.compile(r"--set ('?)([^'=\n]{1,200})=")
_OF_OPTIONS: Final = {f"--{name.replace('_', '-')}": name for name in _INPUTS}


def _asked(result: Checked) -> Iterator[tuple[str, str]]:
    """Yield the keys, and names of settings, that would tell what a result says is missing."""
    errors = [remark.fix for remark in result.remarks if remark.severity == "error"]
    for fix in () if result.passed else errors or result.reasons:
        names = {match[2] for match in _SET.finditer(fix)}
        yield from (("set", name) for name in names)
        if not names and "vocab_size" in fix:
            yield "vocab_size", ""
        elif not names and (key := _OF_OPTIONS.get(fix.split(" ")[0].rstrip(","))):
            yield key, ""


def _relative(file: str, folder: Path) -> str:
    path = Path(file).absolute()
    return path.relative_to(folder).as_posix() if path.is_relative_to(folder) else path.as_posix()


def _pattern(names: list[str]) -> str:
    """Return the narrowest pattern of all names: the name, or the files of the folder above all of them."""
    if len(names) == 1:
        return names[0]
    parts = [name.split("/")[:-1] for name in names]
    common = [column[0] for column in zip(*parts, strict=False) if len(set(column)) == 1]
    depth = next((i for i, column in enumerate(zip(*parts, strict=False)) if len(set(column)) > 1), len(common))
    return "/".join([*common[:depth], "*"])


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
