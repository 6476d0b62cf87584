"""Command lines as flags and words, the jobs that start them (SkyPilot, MosaicML), and the devices that they book."""

from __future__ import annotations

import contextlib
import re
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from simulator.budget import charge
from simulator.errors import InputError, UndecidedError
from simulator.frameworks.arguments import Argument, Arguments
from simulator.frameworks.documents import Key, as_text, keys_of, read_document, read_text
from simulator.frameworks.flags import plain
from simulator.frameworks.values import Cause, PlainValue, require_inside
from simulator.question.origin import Place
from simulator.recipes.readers.recognition import command_line
from simulator.recipes.shell.launch import TrainingCommand
from simulator.recipes.shell.values import Value, split_fields, text_value

_COMMANDS: Final = frozenset(["run", "command", "commands", "script", "args", "arguments", "entrypoint"])
"""Last parts of keys that hold shell."""
COMPOSED: Final = "services"
"""Section of a compose file, whose commands have `$$` for a `$` of the shell."""
_SET: Final = "environment"
_VISIT_WORK: Final = 20  # units of work per value of a document
_HEAD: Final = "setup"  # key of preceding commands, which may hold a scheduler's own lines
_ENVIRONMENT: Final = frozenset(["envs", "env", "env_variables"])
_DEVICES: Final = re.compile(r"[\w-]+:([1-9]\d{0,3})", re.ASCII)  # devices per node: `H100:8`


def job_script(path: Path) -> tuple[str, Mapping[str, str]]:
    """Return the shell of a job's description, at its line numbers, and the variables that the job sets.

    The text is empty without any shell. SkyPilot passes a task's nodes and devices as variables (docs,
    running-jobs/environment-variables).
    """
    try:
        document = read_document(path)
        keys = keys_of(path, document)
    except InputError:
        return "", {}
    lines: list[str] = []
    services: dict[tuple[str, ...], str] = {}
    for key in keys:
        # Return the shell of a key; for a list the command after `-c`, or one command per line.
        items = [value.text for value in key.values]
        behind = items.index("-c") + 1 if "-c" in items else 0
        words = items[behind : behind + 1] if 0 < behind < len(items) else items
        composed = key.path[0] == COMPOSED
        text = shlex.join(words) if composed and len(words) > 1 else "\n".join(words)
        whole, text = text, text.replace("$$", "$") if composed else text
        if key.dotted == _HEAD or (key.name in _COMMANDS and command_line(text)):
            services |= {key.path[1:2]: whole} if composed else {}
            lines += [""] * (key.line - len(lines))
            lines += text.split("\n")
    variables = _variables(keys) | _of_services(keys, services)
    if not lines:
        whole = read_text(path)
        for text in _in_containers(document, variables):
            places = (whole.find(part) for part in (text.strip().partition("\n")[0], text.split()[0]))
            place = next((each for each in places if each >= 0), 0)
            lines += [""] * (whole.count("\n", 0, place) - len(lines)) + text.split("\n")
    return "\n".join(lines), variables


_OF_HOST: Final = re.compile(r"\$\$|\$\{?([A-Za-z_]\w*)", re.ASCII)
"""A variable that compose replaces by the host's; `$$` leaves one to the shell."""


def _of_services(keys: Sequence[Key], services: Mapping[tuple[str, ...], str]) -> dict[str, str]:
    """Return the variables that services with these commands have alike, but those that the host may replace."""
    pairs = {service: set[tuple[str, str]]() for service in services}
    for key in keys:
        if key.path[0] == COMPOSED and key.path[2:3] == (_SET,) and key.path[1:2] in pairs:
            pairs[key.path[1:2]].update(_set(key))
    shared = set.intersection(*pairs.values()) if pairs else set()
    counts = Counter(name for name, _ in shared)
    replaced = {name for text in services.values() for name in _OF_HOST.findall(text)}
    return {name: text for name, text in shared if counts[name] == 1 and "$" not in text and name not in replaced}


def _set(key: Key) -> Iterator[tuple[str, str]]:
    """Yield the variables of a compose file's `environment`: a mapping, or a list of `NAME=VALUE`."""
    for value in key.values:
        name, equals, text = value.text.partition("=")
        yield from [(name, text)] if key.name == _SET and equals else [(key.name, value.text)] * (key.name != _SET)


def _in_containers(value: Any, variables: dict[str, str]) -> Iterator[str]:
    """Yield the shell of Kubernetes' containers and of a ConfigMap's scripts; add the containers' variables."""
    charge(_VISIT_WORK)
    if isinstance(value, list):
        for item in value:
            yield from _in_containers(item, variables)
    if not isinstance(value, dict):
        return
    environment = value.get("env")
    for each in environment if isinstance(environment, list) else ():
        if isinstance(each, dict) and isinstance(each.get("value"), str | int) and "name" in each:
            variables[str(each["name"])] = str(each["value"])
    parts = (value.get(name) for name in ("command", "args"))
    words = [str(word) for part in parts for word in (part if isinstance(part, list) else ())]
    text = words[words.index("-c") + 1] if "-c" in words[:-1] else shlex.join(words)
    if command_line(text):
        yield text
    for name, item in value.items():
        if isinstance(item, str) and str(name).endswith(".sh") and command_line(item):
            yield item
        elif name not in ("command", "args", "env"):
            yield from _in_containers(item, variables)


_OF_CHART: Final = re.compile(
    r"-[ ]name:[ ]*(\w{1,100})\n[ ]*value:[ ]*[\"']?"
    r"\{\{-?[ ]*(?:\$\w{1,100})?\.Values\.([\w.]{1,200})[ ]*-?\}\}[\"']?[ ]*$",
    re.MULTILINE | re.ASCII,
)  # a container's variable in a template of Helm, and the value that it has
_MOST_TEMPLATES: Final = 32


def chart_variables(path: Path) -> dict[str, str]:
    """Return the variables that the Helm chart in a script's folder gives its containers, where all have them alike."""
    values, folder = path.with_name("values.yaml"), path.with_name("templates")
    if not (path.with_name("Chart.yaml").is_file() and values.is_file()):
        return {}
    templates = sorted(folder.glob("*.y*ml"))
    if len(templates) > _MOST_TEMPLATES:
        return {}
    pairs: dict[tuple[str, str], None] = {}
    with contextlib.suppress(InputError):
        keys = keys_of(values, read_document(require_inside(values, path, str(values))))
        texts = {key.dotted: as_text(key.content) for key in keys if isinstance(key.content, int | str)}
        for template in templates:
            text = read_text(require_inside(template, path, str(template)))
            pairs |= {(name, texts.get(value, "")): None for name, value in _OF_CHART.findall(text)}
    counts = Counter(name for name, _ in pairs)
    return {name: text for name, text in pairs if text and counts[name] == 1}


def _variables(keys: Sequence[Key]) -> dict[str, str]:
    own = (key for key in keys if len(key.path) == 2 and key.path[0] in _ENVIRONMENT and len(key.values) == 1)
    variables = {key.name: key.values[0].text for key in own}
    texts = {key.dotted: key.values[0].text for key in keys if key.values}
    if "resources.accelerators" in texts:
        devices = _DEVICES.fullmatch(texts["resources.accelerators"])
        variables["SKYPILOT_NUM_NODES"] = texts.get("num_nodes", "1")
        if devices is not None:
            variables["SKYPILOT_NUM_GPUS_PER_NODE"] = devices[1]
    return variables


_VISIBLE = ("CUDA_VISIBLE_DEVICES", "ASCEND_RT_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "MUSA_VISIBLE_DEVICES")
_LISTS = ("gpus", "devices", "npus", "xpus", "mlus", "custom_devices")
_BY_ENVIRONMENT = ("erniekit", "paddleformers-cli")  # programs that take the number of nodes from the environment
_MOST = 1 << 20
_ONE_OF_MANY = frozenset(["rank", "world_size", "use_mpi"])
"""Flags of programs that join processes started elsewhere: Hygon's and llm-jp's Megatron."""
_WORKERS = 8  # default processes of MindSpore 2.7's `msrun`, both in total and per node


def cluster_of(launch: TrainingCommand, arguments: Arguments) -> tuple[int | None, int | None]:
    """Return nodes and processes per node; None where only the run knows."""
    options = launch.options
    if launch.launcher == "python":
        return _started(launch, arguments) if launch.spread else _alone(launch, arguments)
    if launch.launcher == "torch":
        nodes = _count(arguments, options, "nodes", ("nnodes",), default=_unless_open(launch, arguments, "nodes"))
        each = options.get("nproc_per_node")
        if each is not None and each.text in ("gpu", "auto"):
            return nodes, _visible(launch, arguments)
        usual = None if each else _unless_open(launch, arguments, "devices_per_node")
        return nodes, _count(arguments, options, "devices_per_node", ("nproc_per_node",), default=usual)
    if launch.launcher == "deepspeed":
        return _deepspeed(launch, arguments)
    if launch.launcher == "msrun":
        return _msrun(launch, arguments)
    return _paddle(launch, arguments)


def _alone(launch: TrainingCommand, arguments: Arguments) -> tuple[int | None, int | None]:
    """Return one process; None where unknown words may start several, or it joins others."""
    if _ONE_OF_MANY.intersection(arguments.entries):
        return None, None
    if not launch.in_front:
        return 1, 1
    arguments.need(launch.in_front, "nodes", "devices_per_node")
    return None, None


def _unless_open(launch: TrainingCommand, arguments: Arguments, option: str) -> int | None:
    """Return the launcher's default of 1; None where unknown options may change it."""
    if not launch.open_options or {"nodes": "nnodes", "devices_per_node": "nproc_per_node"}[option] in launch.options:
        return 1
    arguments.need(launch.open_options, option)
    return None


_OF_SLURM: Final = {"nodes": "SLURM_NNODES", "tasks": "SLURM_NTASKS", "tasks_per_node": "SLURM_NTASKS_PER_NODE"}


def _started(launch: TrainingCommand, arguments: Arguments) -> tuple[int | None, int | None]:
    """Return the processes of `srun` or `mpirun`, by their options, else by Slurm's variables."""
    known, own = dict(launch.spread), launch.environment
    if launch.spread["starter"].text.endswith("srun"):
        known = {name: own[variable] for name, variable in _OF_SLURM.items() if variable in own} | known
    nodes = _count(arguments, known, "nodes", ("nodes",), default=None)
    each = _count(arguments, known, "devices_per_node", ("tasks_per_node",), default=None)
    tasks = _count(arguments, known, "devices", ("tasks",), default=None)
    if tasks and each and nodes is None and tasks % each == 0:
        nodes = tasks // each
    elif tasks and nodes and each is None and tasks % nodes == 0:
        each = tasks // nodes
    elif tasks and nodes is None and each is None:
        arguments.devices = tasks
        return None, None
    for count, option, name in ((nodes, "nodes", "SLURM_NNODES"), (each, "devices_per_node", "SLURM_NTASKS_PER_NODE")):
        if count is None and option not in arguments.incomplete and "devices" not in arguments.incomplete:
            arguments.need([Cause(launch.line, name)], option)
    return nodes, each


def _paddle(launch: TrainingCommand, arguments: Arguments) -> tuple[int | None, int | None]:
    options = launch.options
    nodes = _count(arguments, options, "nodes", ("nnodes",), default=None)
    if nodes is None and "nnodes" not in options:
        hosts = options.get("ips") or options.get("hosts")
        if launch.program in _BY_ENVIRONMENT:
            nodes = _count(arguments, launch.environment, "nodes", ("NNODES",), default=1)
        else:
            nodes = _listed(arguments, hosts, "nodes") if hosts else 1
    devices = _count(arguments, options, "devices_per_node", ("nproc_per_node",), default=None)
    lists = [options[name] for name in _LISTS if name in options]
    if devices is None and "nproc_per_node" not in options:
        devices = _listed(arguments, lists[0], "devices_per_node") if lists else _visible(launch, arguments)
    return nodes, devices


def _deepspeed(launch: TrainingCommand, arguments: Arguments) -> tuple[int | None, int | None]:
    options = launch.options
    chosen = next((name for name in ("include", "i", "exclude", "e") if name in options), "")
    if chosen and "num_nodes" not in options:
        return _chosen(arguments, options[chosen], is_included=chosen[0] == "i")
    if "hostfile" in options:
        nodes = _count(arguments, options, "nodes", ("num_nodes",), default=None)
        if nodes is None:
            arguments.need([Cause(options["hostfile"].line, "--hostfile")], "nodes")
    else:
        nodes = _count(arguments, options, "nodes", ("num_nodes",), default=1)
        if "num_nodes" not in options:
            message = "deepspeed starts on the hosts of its host file, which is not read: one node is taken"
            arguments.remark_line("hosts-assumed", "note", message, launch.line, fix="--nodes N")
    devices = _count(arguments, options, "devices_per_node", ("num_gpus", "num_accelerators"), default=None)
    if devices is None and "num_gpus" not in options:
        devices = _visible(launch, arguments)
    return nodes, devices


def _chosen(arguments: Arguments, value: PlainValue, *, is_included: bool) -> tuple[int | None, int | None]:
    """Return the hosts and the devices of each in `a:0,1@b:0,1`; None where they differ or are left out."""
    hosts = [host.partition(":")[2] for host in value.text.split("@")]
    counts = {sum(_slots(part) for part in slots.split(",")) if slots else 0 for slots in hosts}
    if value.known and is_included and len(counts) == 1:
        arguments.places |= dict.fromkeys(("nodes", "devices_per_node"), Place(arguments.file, value.line or 1))
        return len(hosts), counts.pop() or None
    causes = value.causes or [Cause(value.line, "--include" if is_included else "--exclude")]
    arguments.need(causes, "nodes", "devices_per_node")
    return None, None


def _slots(text: str) -> int:
    """Return the number of devices in `3` or `0-3`."""
    match = re.fullmatch(r"\s*([0-9]{1,4})-([0-9]{1,4})\s*", text, re.ASCII)
    return max(int(match[2]) - int(match[1]) + 1, 0) if match else 1


def _msrun(launch: TrainingCommand, arguments: Arguments) -> tuple[int | None, int | None]:
    """Return nodes and processes per node of MindSpore's launcher, by total and per-node processes."""
    each = _count(arguments, launch.options, "devices_per_node", ("local_worker_num",), default=_WORKERS)
    tasks = _count(arguments, launch.options, "nodes", ("worker_num",), default=_WORKERS)
    if not each or not tasks:
        return None, each
    if tasks % each:
        line = launch.options["worker_num"].line if "worker_num" in launch.options else launch.line
        raise InputError(f"{arguments.file}:{line}: worker_num {tasks} is no multiple of local_worker_num {each}")
    return tasks // each, each


def _visible(launch: TrainingCommand, arguments: Arguments) -> int | None:
    """Return the number of visible devices by the environment; None, meaning all of a node, without a list."""
    for name in _VISIBLE:
        if name in launch.environment:
            return _listed(arguments, launch.environment[name], "devices_per_node")
    return None


def _count(
    arguments: Arguments, options: Mapping[str, PlainValue], option: str, names: tuple[str, ...], *, default: int | None
) -> int | None:
    """Return a number among the launcher's options; `default` where absent, None where unknown."""
    value = next((options[name] for name in names if name in options), None)
    if value is None:
        return default
    arguments.places[option] = Place(arguments.file, value.line or 1)
    if not value.known:
        arguments.need(value.causes, option)
        return None
    text = value.text
    text = text.split(":")[-1] if re.fullmatch(r"\d+:\d+", text, re.ASCII) else text
    if text.startswith("--"):
        message = f"{_shown(names[0])} has no value: a variable behind it is empty; --set NAME=VALUE"
        raise UndecidedError(f"{arguments.file}:{value.line}: {message}")
    if not re.fullmatch(r"[0-9]{1,7}", text, re.ASCII) or not 1 <= int(text) <= _MOST:
        raise InputError(
            f"{arguments.file}:{value.line}: {_shown(names[0])}: '{value.text[:40]}' given; must be a whole number"
        )
    return int(text)


def _listed(arguments: Arguments, value: PlainValue, option: str) -> int | None:
    """Return the number of items in a list such as `0,1,2,3`."""
    arguments.places[option] = Place(arguments.file, value.line or 1)
    if not value.known:
        arguments.need(value.causes, option)
        return None
    return len([item for item in value.text.split(",") if item.strip()]) or None


def _shown(name: str) -> str:
    return f"--{name}" if name in ("nnodes", "nproc_per_node", "num_nodes", "num_gpus") else name.replace("_", " ")


ARGUMENTS: Final = frozenset("@*")
"""Variables that hold all of the script's own arguments (`$@`, `$*`), assumed to be empty."""
_MANY: Final = re.compile(r"(data_path|data|paths|files|dirs|datasets?|modules|targets)$")
"""Flags in no table that take several values."""
_BAG: Final = re.compile(r"[$]?\{?\w*(arg|opt|flag|extra|param|conf)\w*(\[[@*]\])?\}?", re.IGNORECASE)
"""Names of variables that hold flags, not a value."""
_BARE: Final = re.compile(r"(no|use|do|enable|disable|skip|overwrite)_")  # flags in no table that take no value


def add_words(arguments: Arguments, words: Sequence[Value]) -> list[Value]:
    """Add the words after the script's name; return those before the first flag."""
    positional: list[Value] = []
    flag: Value | None = None
    values: list[Value] = []
    for word in words:
        if word.pieces and word.pieces[0].known and re.match(r"--?[A-Za-z_]", word.text):
            _finish(arguments, flag, values)
            flag, values = word, []
        elif _is_opaque(arguments, word, flag, values):
            _add_opaque(arguments, word)
        elif flag is None:
            positional.append(word)
        else:
            values.append(word)
    _finish(arguments, flag, values)
    return positional


def _finish(arguments: Arguments, flag: Value | None, values: list[Value]) -> None:
    if flag is None:
        return
    name, equals, text = flag.text.partition("=")
    if equals:
        first = text_value(text, flag.line) if flag.known else Value(tuple(p for p in flag.pieces if not p.known))
        values = [first, *values]
    arguments.add(name, values, flag.line)


def _is_opaque(arguments: Arguments, word: Value, flag: Value | None, values: list[Value]) -> bool:
    """Whether an unknown word stands for flags, not for a value."""
    first = word.pieces[0] if word.pieces else None
    if first is None or word.known:
        return False
    if any(piece.known and piece.text for piece in word.pieces):
        return first.known and first.text in ("-", "--")
    if _only_arguments(word) or any(other.text.lstrip().startswith("--") for other in first.alternatives):
        return True
    named = any(_BAG.fullmatch(name) for name in (word.text, *(cause.name for cause in word.causes)))
    if flag is None:
        return named or not first.quoted
    name = plain(flag.text.partition("=")[0])
    full = bool(values) or "=" in flag.text
    known = arguments.table.get(name)
    if known is not None and known.effect != "no_effect":
        return known.kind == "switch" or (full and known.kind in ("value", "optional"))
    return named or _BARE.match(name) is not None or (full and _MANY.search(name) is None)


def _add_opaque(arguments: Arguments, word: Value) -> None:
    """Add the flags of an unknown word: those on all paths are set, the others only may be."""
    if _only_arguments(word):
        message = f"{word.text} is taken as no arguments: nobody gave the script any"
        if all(remark.message != message for remark in arguments.remarks):
            arguments.remark_line("assumed-unset", "note", message, word.line, fix="--set '@=ARGUMENTS'")
        return
    alternatives = word.pieces[0].alternatives if word.pieces[0].causes == word.causes else ()
    if not alternatives:
        arguments.bags |= word.causes
    paths: list[dict[str, list[Argument]]] = []
    for alternative in alternatives:
        inner = Arguments(arguments.file, arguments.table, complete=arguments.complete)
        add_words(inner, split_fields(alternative.inserted(quoted=False)))
        paths.append(inner.entries)
        arguments.maybe |= inner.maybe
        arguments.bags |= inner.bags
    arguments.note(word.causes)
    for name in dict.fromkeys(name for path in paths for name in path):
        entries_by_path = [path.get(name) for path in paths]
        texts = {" ".join(entry.text for entry in entries) if entries else None for entries in entries_by_path}
        if len(texts) == 1 and entries_by_path[0]:
            arguments.entries.setdefault(name, []).extend(entries_by_path[0])
        else:
            arguments.maybe[name] = arguments.maybe.get(name, frozenset()) | word.causes
            flag = arguments.table.get(name)
            for other in _names(arguments, name) & arguments.entries.keys():
                before = arguments.entries[other][-1:]
                switch = flag is not None and flag.kind == "switch"
                same = name == other if switch else texts - {None} == {entry.text for entry in before}
                if before and not same:
                    # Set before, and set anew on some paths only.
                    arguments.entries[other].append(replace(before[0], values=(word,)))


def _names(arguments: Arguments, name: str) -> set[str]:
    """Return a flag's name and all of its other names."""
    flag, aliases = arguments.table.get(name), arguments.table.aliases
    meant = {name, *(other for other, _ in (flag.aliases() if flag is not None else ()))}
    return meant | {other.name for target in meant for other, _ in aliases.get(target, ())}


def _only_arguments(word: Value) -> bool:
    """Whether a word consists only of the script's own arguments."""
    whole = all(piece.causes or not piece.text for piece in word.pieces)
    return whole and bool(word.causes) and all(cause.name in ARGUMENTS for cause in word.causes)
