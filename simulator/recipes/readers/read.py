"""Reader of recipes: finds the form of a file or launch and calls the reader of its framework."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePath
from types import MappingProxyType
from typing import Any, Final

from simulator.budget import charge, limited
from simulator.errors import (
    AbsentFileError,
    InputError,
    NoRecipeError,
    NotShellError,
    SimulateError,
    UndecidedError,
    UnsupportedError,
)
from simulator.frameworks import registry
from simulator.frameworks.arguments import Arguments
from simulator.frameworks.configuration import filled_keys
from simulator.frameworks.documents import Key, beside, keys_of, read_document, read_text
from simulator.frameworks.framework import FileForm, LaunchForm
from simulator.frameworks.purpose import require_training, require_training_keys, require_training_text
from simulator.frameworks.values import reading_within, require_inside, used_names
from simulator.question.frameworks.stacks import of_code, stack_for, stack_options
from simulator.question.origin import Place, Remark, Unknown, option_for
from simulator.question.recipe import UNREAD, Recipe
from simulator.recipes.readers import formats, recognition
from simulator.recipes.readers.cluster import COMPOSED, add_words, chart_variables, cluster_of, job_script
from simulator.recipes.readers.devices import with_devices
from simulator.recipes.readers.trainers import OwnTrainer, translated
from simulator.recipes.shell.launch import TrainingCommand, other_trainer
from simulator.recipes.shell.script import Script, read_script
from simulator.records import Record, replace

_DOCUMENTS: Final = (".yaml", ".yml", ".json", ".toml")
_SHELL: Final = (".sh", ".bash", ".slurm", ".sbatch", ".txt", "")
_NAME: Final = re.compile(r"[^\n=]{1,200}|[$`][^\n]{1,200}")
"""Name of a setting: a variable, parameter or file, or a command in the script's words, which may contain `=`."""


_PLACEHOLDER: Final = re.compile(r"<([A-Za-z][^<>\n\"'`$;&|]{0,200}+)>")
"""A placeholder for the script's user: `<Specify path>`."""


def read_recipe(
    path: str | Path,
    settings: Mapping[str, str] | None = None,
    environment: Mapping[str, str] | None = None,
    root: Path | None = None,
    trainers: Mapping[str, OwnTrainer] = MappingProxyType({}),
) -> tuple[Recipe, ...]:
    """Return the training runs that a file describes.

    `settings` are values for what the file leaves to the run (`--set NAME=VALUE`); `environment` are variables that the
    script may see, by default none; files are read below `root`, by default the file's repository; `trainers` are the
    repository's own, by pattern of their script. Raises InputError for a file that is no recipe or takes too much work
    to read, and UnsupportedError for a framework that is not read.
    """
    path = Path(path)
    settings = dict(settings or {})
    with limited(str(path)), reading_within(root, settings):
        recipes = _read(path, settings, environment or {}, trainers)
        return tuple(_with_named_stack(recipe, path) for recipe in recipes)


_STACK: Final = re.compile(r"^[ \t]*(?:#|//)[ \t]*simulate:[ \t]*stack=([\w.@-]{1,60})[ \t]*$", re.MULTILINE)


def _with_named_stack(recipe: Recipe, path: Path) -> Recipe:
    """Return the recipe with the stack of a comment `# simulate: stack=NAME`. Raises InputError for an unknown one."""
    text = read_text(path)
    named = _STACK.search(text) if "simulate:" in text else None
    if named is None or recipe.dialect == UNREAD:
        return recipe
    line = text.count("\n", 0, named.start(1)) + 1
    try:
        stack = stack_for(recipe.framework, named[1])
    except InputError as error:
        raise InputError(f"{path}:{line}: {error}") from error
    places = {**recipe.places, "stack": Place(recipe.file, line)}
    implied = of_code(stack) | (_LIBRARY if recipe.dialect == _ACCELERATE else frozenset())
    options = {name: text for name, text in recipe.options.items() if name not in implied or name in places}
    return replace(recipe, stack=stack, places=places, options=options)


_ACCELERATE: Final = "accelerate-shell"
_LIBRARY: Final = frozenset((*stack_options("transformers"), *stack_options("peft"), "step_temporaries"))
"""Switches that its reader takes from a trainer's library: a launch that names its stack has those of the stack."""


def _read(
    path: Path, settings: Mapping[str, str], environment: Mapping[str, str], trainers: Mapping[str, OwnTrainer]
) -> tuple[Recipe, ...]:
    for name in settings:
        if not _NAME.fullmatch(name):
            raise InputError(f"--set {name[:60]!r}: a name has no line break and no '='")
    if "\0" in str(path):
        raise InputError("a path has no NUL character")
    require_inside(path, path, str(path))
    suffix = path.suffix.lower()
    if suffix in _DOCUMENTS:
        try:
            recipe, used = _read_document(path, settings)
        except _CommandWithinError:
            script, variables = job_script(path)
            with contextlib.suppress(NoRecipeError, NotShellError, UnsupportedError):
                return _read_shell(path, script, settings, {**variables, **environment}, trainers)
            raise
        recipe = with_devices(recipe, read_text(path))
        return (_with_unused(recipe, settings, sorted(set(settings) - used)),)
    if suffix == ".py":
        recipes, unused = formats.read_python_file(path, settings)
        return tuple(_with_unused(with_devices(recipe, read_text(path)), settings, unused) for recipe in recipes)
    text = read_text(path, newlines=True)
    if suffix not in _SHELL and not text.startswith("#!"):
        raise NoRecipeError(f"{path}: not a recipe: allowed are shell scripts and {', '.join(_DOCUMENTS)}")
    chart = {name: value for name, value in chart_variables(path).items() if re.search(rf"\b{name}\b", text)}
    recipes = _read_shell(path, text, settings, {**chart, **environment}, trainers)
    if not chart:
        return recipes
    shown = " ".join(f"{name}={value}" for name, value in chart.items())
    remark = Remark("example-arguments", "warning", f"the chart beside it says {shown[:300]}", Place(str(path), 1))
    return tuple(replace(recipe, remarks=(*recipe.remarks, remark)) for recipe in recipes)


class _CommandWithinError(UnsupportedError):
    """A configuration file of no known framework contains a training command."""


class _Document(Record):
    """A configuration file and its keys."""

    path: Path
    content: Mapping[str, Any]
    keys: list[Key]
    names: frozenset[str]
    """Dotted paths and last parts of all keys, and all top-level sections."""
    settings: Mapping[str, str]


_ReadRecipe = tuple[Recipe, set[str]]
_READ: Final = (
    "read are Megatron-LM's MODEL_ARGS, NeMo, Automodel, Megatron-Bridge, Primus, FlagScale, GPT-NeoX, Paddle, "
    "LLaMA-Factory, TRL, axolotl, oumi, OLMo, llm-foundry, open-instruct, torchtitan, torchtune; in scripts "
    "also ms-swift and Hugging Face's Trainer, under accelerate too"
)


def _read_document(path: Path, settings: Mapping[str, str]) -> _ReadRecipe:
    """Return the recipe of a configuration file, and the settings that it used."""
    text = read_text(path)
    try:
        content = read_document(path)
    except InputError as error:
        raise _unparsed(path, text, error) from error
    require_training_text(str(path), text)
    if {"schema_version", "tool_version"} <= content.keys():
        raise NoRecipeError(f"{path}: starts no training: an answer of simulate")
    keys = keys_of(path, content)
    names = {key.dotted for key in keys} | {key.name for key in keys} | {str(name) for name in content}
    if trainer := recognition.trainer_of(names, keys):
        raise _of_other(path, trainer)
    document = _Document(path, content, keys, frozenset(names), settings)
    require_training_keys(str(path), keys)
    if recognition.is_deepspeed(content):
        raise NoRecipeError(f"{path}: a DeepSpeed configuration names no model; give the script that names the file")
    if answer := _as_documented(path, text, keys) or _by_format(document):
        return answer
    if not content.keys().isdisjoint(recognition.OF_DEEPSPEED):
        raise NoRecipeError(f"{path}: a DeepSpeed configuration names no model; give the script that names the file")
    if "compute_environment" in content or "distributed_type" in content:
        raise NoRecipeError(f"{path}: a configuration of accelerate names no model; give the script that names it")
    raise _unread(path, text, names, [str(name) for name in content])


def _as_documented(path: Path, text: str, keys: Iterable[Key]) -> _ReadRecipe | None:
    """Return the recipe as a page of its repository starts it, on any number of nodes; None without such a page."""
    documented = formats.documented_launch(path, text)
    with contextlib.suppress(AbsentFileError):
        recipe = _read_launch(documented[0], str(path)) if documented else None
        if documented and recipe:
            recipe = replace(recipe, nodes=None, remarks=(*recipe.remarks, documented[1]))
            return formats.with_network(recipe, keys), set()
    return None


def _by_format(document: _Document) -> _ReadRecipe | None:
    """Return the recipe by the first format whose marks a file has, no framework's first, and the settings used."""
    path, keys = document.path, document.keys
    words = [key.path[-1] for key in keys if key.path[0] == formats.FLAG_SECTION]  # Megatron's flags or NeMo's keys
    if any(word.startswith("--") for word in words):
        recipe, used = formats.read_model_args(path, keys, document.settings)
        return formats.with_network(recipe, keys), used
    if any("." in word for word in words):
        recipe, used = formats.read_nemo(path, formats.dotted(keys), document.settings)
        return formats.with_network(recipe, keys), used
    for name, form in registry.file_forms():
        if form.is_own(document.names) and (answer := _by_file_form(name, form, document)):
            return answer
    return None


def _by_file_form(name: str, form: FileForm, document: _Document) -> _ReadRecipe | None:
    """Return the recipe of a configuration file in a framework's form; None where that cannot read it."""
    arguments = Arguments(str(document.path), registry.table(name, form), complete=form.complete)
    stated, remarks = formats.documented_settings(document.path)
    arguments.settings = {**stated, **document.settings}
    keys = filled_keys(arguments, document.keys) if form.refers else document.keys
    run = registry.read_file(form, arguments, keys)
    if run is None:
        return None
    recipe = arguments.in_file(run, form.dialect, remarks=(*run.remarks, *remarks))
    return formats.with_network(recipe, (*document.keys, *arguments.keys_beside)), arguments.used


def _of_other(path: Path, trainer: str) -> UnsupportedError:
    return UnsupportedError(f"{path}: a file of {trainer}, which is not read; {_READ}")


def _unread(path: Path, text: str, names: Collection[str], outer: Collection[str] | None = None) -> SimulateError:
    """Return the error for a file that no reader takes, by whether anything in it trains."""
    if path.suffix == ".json" and recognition.is_recorded(names):
        return NoRecipeError(f"{path}: starts no training: the results of a run")
    if COMPOSED in (outer or ()) and (line := recognition.command_line(text)):
        raise _CommandWithinError(f"{path}:{line}: a command of a service; give the script that it starts")
    trains = recognition.settings_of_training({*names, *recognition.names_in(text)}, str(path), outer)
    if trains := trains or recognition.experiment(text):
        return UnsupportedError(f"{path}: trains ({trains}) in no framework that is read; {_READ}")
    if line := recognition.command_line(text) or recognition.in_code(text)[1]:
        message = f"{path}:{line}: a command within a configuration file; give the script that it starts"
        return _CommandWithinError(message)
    if "model_type" in names:
        return NoRecipeError(f"{path}: a model configuration is no recipe; give it as --model")
    return NoRecipeError(f"{path}: starts no training: no recipe of a framework that is read; {_READ}")


_TEMPLATE: Final = re.compile(
    r"\{\{-?\s*(?:\.|\$|if\b|end\b|range\b|include\b|template\b|with\b|tpl\b|define\b|toYaml\b)"
)


def _unparsed(path: Path, text: str, error: InputError) -> SimulateError:
    """Return the error for a file that cannot be parsed or holds several documents: it may still train."""
    names = recognition.names_in(text)
    if _TEMPLATE.search(text):
        return NoRecipeError(f"{path}: a template of Helm, which holds no values yet")
    if trainer := recognition.trainer_of(names):
        return _of_other(path, trainer)
    try:
        require_training_text(str(path), text)
    except NoRecipeError as idle:
        return idle
    line, _, why = str(error).removeprefix(str(path)).partition(": ")
    if "is not allowed" in why and recognition.settings_of_training(names, str(path)):
        return _unread(path, text, names)
    if path.suffix == ".json" and recognition.is_recorded(names):
        why = "the results of a run"
    elif path.suffix == ".json" and {"zero_optimization", "steps_per_print"} <= names:
        why = "a template of a DeepSpeed configuration names no model"
    elif text.strip() and (
        not _OTHER_KIND.search(why)
        or recognition.settings_of_training(names, str(path))
        or recognition.command_line(text)
    ):
        return error
    return NoRecipeError(f"{path}{line}: starts no training, and cannot be read: {why}")


_OTHER_KIND: Final = re.compile(
    r"must hold a mapping|nested deeper than|more than one YAML document| is not allowed|is not a finite number"
    r"|duplicate key|not valid YAML(?!: exceeded)|not valid JSON: (?!Exceeds)[A-Z]"
)  # errors of YAML or JSON files that may be no configurations, such as lines of JSON, results, templates


_LAUNCH_WORK: Final = 1_000_000  # units of work charged for the verdict on a launch


def _read_shell(
    path: Path,
    text: str,
    settings: Mapping[str, str],
    environment: Mapping[str, str],
    trainers: Mapping[str, OwnTrainer],
) -> tuple[Recipe, ...]:
    file = str(path)
    script = _script(text.replace("\r\n", "\n"), file, settings, environment)
    recipes = []
    passed: list[TrainingCommand] = []
    idle: list[NoRecipeError] = []
    launches = [translated(launch, trainers) for launch in script.launches]
    # No launch starts by a branch that leaves an option of the launcher empty, where another one fills it.
    whole = [launch for launch in launches if not any(value.text[:2] == "--" for value in launch.options.values())]
    lines = {launch.line for launch in whole}
    for launch in (launch for launch in launches if launch in whole or launch.line not in lines):
        try:
            require_training(launch, file)
            recipe = None if other_trainer(launch) else _read_launch(launch, file)
        except NoRecipeError as error:
            idle.append(error)
            continue
        if recipe is None:
            passed.append(launch)
        else:
            charge(_LAUNCH_WORK)
            recipe = formats.with_network(_conditional(recipe, launch))
            recipe = with_devices(recipe, read_text(path), {**launch.options, **launch.environment})
            remarks = (*_line_ends(text, file), *_script_remarks(script, file))
            recipe = replace(recipe, remarks=(*recipe.remarks, *remarks))
            recipes.append(_with_unused(recipe, settings, script.unused_settings))
    if recipes:
        return (*recipes, *_unread_launches(file, passed))
    if passed:
        raise _of_no_framework(file, passed[0])
    raise _no_launch(file, text, script, idle)


def _unread_launches(file: str, launches: Iterable[TrainingCommand]) -> Iterator[Recipe]:
    """Yield recipes without a verdict for launches, beside readable ones, that no reader takes."""
    for launch in launches:
        title = PurePath(launch.script.text).name
        if launch.launcher != "python" or recognition.names_training(title):
            error, place = _of_no_framework(file, launch), Place(file, max(launch.line, 1))
            rule = "unknown-flag" if isinstance(error, UndecidedError) else "not-modelled"
            remark = Remark(rule, "error", str(error).partition(": ")[2], place)
            yield Recipe(file=file, title=title, dialect=UNREAD, framework="torch", remarks=(remark,))


_ENTRY: Final = re.compile(r"pretrain_\w+[.]py")  # megatron's own programs, whose flags may all be in a variable


def _of_no_framework(file: str, launch: TrainingCommand) -> SimulateError:
    """Return the error for a launch that no reader takes, naming its trainer or its unknown words."""
    where, flags = f"{file}:{launch.line}", [value.text for value in launch.arguments if value.text.startswith("--")]
    shown = launch.script.text[:60] if launch.launcher != "other" else launch.program
    shown = other_trainer(launch) or shown
    if name := recognition.entry_of(launch):
        return UnsupportedError(f"{where}: '{shown}' starts {name}, which is not read; {_READ}")
    script = PurePath(launch.script.text).name
    unknown = sorted({cause.name for value in launch.arguments for cause in value.causes})
    if unknown and (not flags or _ENTRY.fullmatch(script)):
        asks = " ".join(option_for(name[:60]) for name in unknown[:3])
        return UndecidedError(f"{where}: what {script[:60]} is started with is not known; {asks}")
    return UnsupportedError(f"{where}: '{shown}': flags of no framework that is read")


def _no_launch(file: str, text: str, script: Script, idle: Sequence[NoRecipeError]) -> SimulateError:
    """Return the error for a script without a training that could be followed."""
    reason = next(_not_followed(file, text, script), "")
    if reason:
        return UndecidedError(reason)
    if idle:
        return idle[0]
    return NoRecipeError(
        f"{file}: starts no training: no torchrun, paddle.distributed.launch, deepspeed or python train.py"
    )


_ON_DEVICES: Final = re.compile(r"^#SBATCH[^\n]*\bg(?:pu|res)", re.MULTILINE)  # A job that asks for devices
_OTHER_PURPOSE: Final = re.compile(r"conver|eval|infer|setup|install|environment|prepare|preproc|tokeni|download")
"""Names of scripts that train nothing."""
_FOR_DEVICES: Final = re.compile(r"^[^#\n]*[ \t]--gpus(?:-per-\w+)?[ =][\"']?[1-9$]", re.MULTILINE)
"""A command that asks for devices."""


def _not_followed(file: str, text: str, script: Script) -> Iterator[str]:
    """Yield possible trainings that were not followed, with the setting or file that would help."""
    judged = {line for launch in script.launches for line in (launch.line, launch.script.line)}
    line = recognition.command_line(text, judged)
    if line and script.exit_line:
        reason = "the script ends here before it starts any training; --set '@=ARGUMENTS' or --set NAME=VALUE"
        yield f"{file}:{script.exit_line}: {reason}"
    for name, other in script.not_followed.items():
        on_devices = _FOR_DEVICES.search(text) or (other.spread and _ON_DEVICES.search(text))
        spread = not other.text and not script.launches and on_devices and not _OTHER_PURPOSE.search(name)
        if spread or recognition.names_training(name) or "launch" in name or recognition.command_line(other.text):
            yield f"{file}:{other.line}: starts a script {other.why}; {name} is to be judged by itself"
    if line:
        yield f"{file}:{line}: what may train here is not followed: nothing that is read starts it"
    if line := recognition.python_that_trains(text):
        yield f"{file}:{line}: Python code within the script trains; it is not read"
    if recognition.names_training(Path(file).name) and any(remark.rule == "not-read" for remark in script.remarks):
        yield f"{file}: starts nothing by itself, and reads a file that is not at hand; --root FOLDER"
    if not script.launches and (flag := recognition.in_code(text)[0]):
        yield f"{file}: sets {flag} and starts nothing: a part of a training; give the script that reads it"


def _script(text: str, file: str, settings: Mapping[str, str], environment: Mapping[str, str]) -> Script:
    """Return the script; placeholders in angle brackets are read as variables if it has no launch otherwise."""
    plain: Script | InputError
    try:
        plain = _read_filled(text, file, settings, environment, lambda source: source)
    except InputError as error:
        plain = error
    if isinstance(plain, InputError) or (not plain.launches and _PLACEHOLDER.search(text)):
        with contextlib.suppress(InputError):
            filled = _read_filled(text, file, settings, environment, _filled)
            return filled if filled.launches or isinstance(plain, InputError) else plain
    if isinstance(plain, InputError):
        raise plain
    return plain


def _read_filled(
    text: str, file: str, settings: Mapping[str, str], environment: Mapping[str, str], fill: Callable[[str], str]
) -> Script:
    def open_file(name: str, line: int) -> str | None:
        try:
            return fill(read_text(beside(file, name, line)))
        except InputError:
            if name in used_names():
                raise
            return None

    return read_script(fill(text), file, settings, environment, open_file)


def _filled(text: str) -> str:
    def variable(placeholder: re.Match[str]) -> str:
        return '"${' + re.sub(r"\W+", "_", placeholder[1], flags=re.ASCII).strip("_") + '}"'

    return _PLACEHOLDER.sub(variable, text)


def _line_ends(text: str, file: str) -> Iterable[Remark]:
    """Yield a remark on Windows line ends, whose carriage return bash takes for part of the last word."""
    if "\r\n" in text:
        place = Place(file, text.partition("\r\n")[0].count("\n") + 1)
        message = "lines end in CR LF: bash stops at the carriage returns; read as if there were none"
        yield Remark("carriage-returns", "warning", message, place, "sed -i 's/\\r$//'")


def _read_launch(launch: TrainingCommand, file: str) -> Recipe | None:
    """Return the recipe of a launch; None for a framework that is not read."""
    if formats.is_nemo_launch(launch):
        return formats.read_nemo_launch(launch, file)
    for name, form in registry.launch_forms():
        if form.is_own(launch):
            return _by_form(name, form, launch, file)
    return None


def _by_form(name: str, form: LaunchForm, launch: TrainingCommand, file: str) -> Recipe:
    """Return the recipe of a launch in a framework's form."""
    arguments = Arguments(file, registry.table(name, form), complete=form.complete)
    positional = add_words(arguments, launch.arguments)
    if form.take_words is not None:
        form.take_words(arguments, launch, positional)
    nodes, devices = form.cluster(arguments, launch) if form.cluster is not None else cluster_of(launch, arguments)
    run = registry.read_launch(name, form, arguments, launch)
    title = f"{launch.program} {launch.script.text}" if form.is_named_by_program else PurePath(launch.script.text).name
    return replace(run, file=file, title=title, dialect=form.dialect, nodes=nodes, devices_per_node=devices)


def _conditional(recipe: Recipe, launch: TrainingCommand) -> Recipe:
    """Return the recipe with the unknowns that decide whether it runs at all."""
    unknowns = list(recipe.unknowns)
    known = {unknown.name: number for number, unknown in enumerate(unknowns)}
    for cause in sorted(launch.conditions):
        if cause.name in known:
            old = unknowns[known[cause.name]]
            unknowns[known[cause.name]] = replace(old, affects=tuple(sorted({*old.affects, "launch"})))
        else:
            unknowns.append(Unknown(cause.name, Place(recipe.file, max(cause.line, 1)), ("launch",)))
    return replace(recipe, unknowns=tuple(unknowns)) if launch.conditions else recipe


def _script_remarks(script: Script, file: str) -> Iterable[Remark]:
    """Yield remarks on the assumptions of reading the script."""
    yield from script.remarks
    if script.assumed_unset:
        names = sorted(script.assumed_unset)
        place = Place(file, max(min(script.assumed_unset.values()), 1))
        message = "taken as not set: " + ", ".join(f"${name}" for name in names[:12])
        yield Remark("assumed-unset", "note", message, place, "--set NAME=VALUE")
    for line, causes in sorted(script.exits.items()):
        shown = ", ".join(sorted({cause.name for cause in causes})[:6])
        message = f"the script may end here, depending on {shown}; taken not to"
        yield Remark("exit-path", "note", message, Place(file, max(line, 1)))


def _with_unused(recipe: Recipe, settings: Mapping[str, str], unused: Iterable[str]) -> Recipe:
    said = {name: f"--set {name[:60]}={settings[name][:60]}: nothing in the file depends on it" for name in unused}
    remarks = [Remark("unused-setting", "warning", said[name]) for name in said if name not in used_names()]
    return replace(recipe, remarks=(*recipe.remarks, *remarks)) if remarks else recipe
