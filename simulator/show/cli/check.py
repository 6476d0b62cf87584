"""Command `check`: its options, and the way from recipes to verdicts and an exit code.

`recipes.check.judge` judges, `show.report.check` and `check_ci` write.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from simulator.show.cli.options import (
    GATES,
    PATCHES,
    RECIPE,
    REPLACED,
    WORDS,
    Sectioned,
    answer_options,
    layout_options,
    question_options,
    shown,
)
from simulator.show.cli.question import question_on_line, values_by_name
from simulator.show.cli.streams import form_of, note, presentation, progress_bar, verbosity_of, write, write_answer

if TYPE_CHECKING:
    from simulator.answers.gates import Gates
    from simulator.recipes.check.verdict import Checked, Checks
    from simulator.show.report.presentation import Presentation


def _open(params: list[click.Parameter]) -> list[click.Parameter]:
    """Return the options without their defaults, for which a recipe's values stand."""
    for param in params:
        if isinstance(param, click.Option) and not param.multiple and param.name != "hardware":
            param.default = None
            param.show_default = False
    return params


def open_options(*, without: str = "") -> list[click.Parameter]:
    """Return the options of an estimate without their defaults, and those that replace a number of the model."""
    return [
        *_open([param for param in question_options() if param.name != without]),
        REPLACED,
        *_open(layout_options(many=False)),
    ]


_OVER_A_RECIPE = {
    "hardware": "Devices to price on, in place of those that the recipe names: shipped hardware or own YAML.",
    "nodes": "Nodes, in place of the recipe's; without it the recipe's, else the fewest that its degrees fill.",
    "devices": "Devices, instead of nodes.",
}
"""Help of an estimate's options where they apply to a recipe."""


def check_command() -> click.Command:
    """Return the command that judges recipes."""
    replaced = open_options()
    for param in replaced:
        if isinstance(param, click.Option):
            param.help = _OVER_A_RECIPE.get(param.name or "", param.help)
    return Sectioned(
        "check",
        callback=_check,
        params=[
            click.Argument(["files"], nargs=-1, type=str, metavar="FILE|FOLDER..."),
            *RECIPE,
            *replaced,
            *GATES,
            *answer_options("verdicts"),
            PATCHES,
            *WORDS,
        ],
        help=(
            "Judge launch scripts and configuration files before they are launched: do they fit, and would the "
            "framework take them? Nothing is run. Options of an estimate replace what a recipe says."
        ),
        epilog="Exit code: 0 all pass, 1 some fail, 2 a file or its use is wrong, 3 something cannot be told.",
    )


def _check(**values: Any) -> None:
    """Judge every file, write the verdicts, and leave with their exit code."""
    from simulator.recipes.check.folders import compared, ratcheted, read_baseline
    from simulator.recipes.check.judge import check_files
    from simulator.recipes.check.verdict import Checks

    ctx = click.get_current_context()
    if not values["files"]:
        raise click.UsageError("missing argument 'FILE...': name the recipes to judge, or a folder of them")
    outside = [name for name in values if ctx.get_parameter_source(name) is click.core.ParameterSource.ENVIRONMENT]
    if outside:
        note(f"set by the environment: {', '.join(f'SIMULATE_{name.upper()}' for name in outside)}", quiet=False)
    for word, written in (("init", ".simulate.yaml"), ("explain", "a table")):
        if values[word] and (form_of(ctx, "verdicts") != "table" or (word == "init" and values["output"])):
            raise click.UsageError(f"--{word} writes {written}: leave out --format, and a file of another form")
    before = None if values["baseline"] is None else read_baseline(values["baseline"])
    gates = _gates(values)
    environment = dict(os.environ) if values["from_environment"] else None
    settings = values_by_name("--set", values["settings"])
    root, base = (_folder(f"--{name}", values[name]) for name in ("root", "base"))
    with progress_bar(quiet=verbosity_of(ctx) < 0, label="files judged") as bar:
        question = question_on_line(ctx)
        files = values["files"]
        results = check_files(files, question, gates, settings, environment, root, base=base, progress=bar)
    if values["init"]:
        _write_settings(results, question.stated("hardware") or "", root or Path.cwd())
        return
    if values["explain"]:
        from simulator.show.report.check import origins_text

        write(origins_text(results), values["output"])
        return
    if before is not None:
        results = ratcheted(results, before)
    if values["diff"]:
        from simulator.recipes.emit.patch import patched

        results = patched(results, settings, environment or {}, root)
    changed = None if before is None else compared(results, before)
    checks = Checks(results=results, gates=gates, changed=changed, patches=values["diff"])
    write_answer(ctx, "verdicts", checks, presentation(ctx))
    if values["format"] == "github":
        _append_summary(checks, presentation(ctx))
    ctx.exit(checks.exit_code)


def _write_settings(results: tuple[Checked, ...], hardware: str, folder: Path) -> None:
    """Write the settings file that asks for what the results could not know. Raises UsageError where one stands."""
    from simulator.recipes.check.repository import NAME, skeleton

    file = folder / NAME
    try:
        with file.open("x", encoding="utf-8", newline="\n") as stream:
            stream.write(skeleton(results, hardware, folder.absolute()))
    except FileExistsError as error:
        raise click.UsageError(f"--init: {shown(str(file))} is there already") from error
    except OSError as error:
        raise click.UsageError(f"--init: {shown(str(file))}: {error.strerror}") from error
    note(f"written: {file}: fill in what stands empty", quiet=False)


def _folder(option: str, folder: str | None) -> Path | None:
    """Return the folder of an option; None without it."""
    if folder is None:
        return None
    if "\0" in folder or not os.path.isdir(folder):  # noqa: PTH112  false where nobody may look
        raise click.UsageError(f"{option} {shown(folder)}: no such folder")
    return Path(folder)


def _append_summary(checks: Checks, shown_as: Presentation) -> None:
    """Append the verdicts to the job summary, if there is one."""
    from simulator.show.report.check_ci import github_summary

    file = os.environ.get("GITHUB_STEP_SUMMARY")
    if not file:
        return
    try:
        with open(file, "a", encoding="utf-8", newline="\n") as stream:  # noqa: PTH123  appends
            stream.write(github_summary(checks, shown_as))
    except (OSError, ValueError) as error:
        note(f"GITHUB_STEP_SUMMARY cannot be written: {getattr(error, 'strerror', None) or error}", quiet=False)


def _gates(values: Mapping[str, Any]) -> Gates:
    from simulator.answers.gates import FAILING, Gates

    names = ("max_memory_fraction", "min_fit_probability", "skip_non_recipes", "exit_zero")
    words = {word for group in values["fail_on"] for word in group}
    if "starved" in words:  # what is beyond capacity is worse than what is near it
        words.add("does-not-fit")
    fail_on = tuple(outcome for outcome in FAILING if outcome.replace("_", "-") in words) if words else None
    return Gates(fail_on=fail_on, **{name: values[name] for name in names})
