"""Commands on given layouts: `check` recipes, `emit` one, `compare` two, `explain` one; options and exit codes."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from simulator.errors import InputError
from simulator.files import reading
from simulator.late import Lazy
from simulator.question.origin import OPTION
from simulator.show.cli import options, streams
from simulator.show.cli.question import question_on_line, require_model, values_by_name

if TYPE_CHECKING:
    from simulator.answers import cases, compare, explain, gates, ranking, run
    from simulator.question import units
    from simulator.question.question import Question
    from simulator.question.specs import names
    from simulator.recipes.check import folders, judge, repository, verdict
    from simulator.recipes.emit import patch, write
    from simulator.show.report import check
    from simulator.show.report import text as texts
    from simulator.show.report.presentation import Presentation
else:
    cases, compare, explain = (Lazy(f"answers.{name}") for name in ("cases", "compare", "explain"))
    gates, ranking, run = (Lazy(f"answers.{name}") for name in ("gates", "ranking", "run"))
    folders, judge = Lazy("recipes.check.folders"), Lazy("recipes.check.judge")
    repository, verdict = Lazy("recipes.check.repository"), Lazy("recipes.check.verdict")
    patch, write, check = map(Lazy, ("recipes.emit.patch", "recipes.emit.write", "show.report.check"))
    names, units, texts = map(Lazy, ("question.specs.names", "question.units", "show.report.text"))


def compare_two(ctx: click.Context, values: Mapping[str, Any]) -> None:
    """Compare two questions."""
    if not (values["a"] and values["b"]):
        raise click.UsageError("missing arguments A and B: two estimates, recipes or option strings")
    question = question_on_line(ctx)
    sides = case_of_text(values["a"], question), case_of_text(values["b"], question)
    compared = compare.compare(*sides, (values["a"].strip(), values["b"].strip()))
    streams.write_answer(
        ctx, "comparison", compared, streams.presentation(ctx, scenarios=tuple(side.scenario for side in sides))
    )


def explain_one(ctx: click.Context, values: Mapping[str, Any]) -> None:
    """Explain a layout."""
    question = question_on_line(ctx)
    case = _case_of_options(question) if values["subject"] is None else case_of_text(values["subject"], question)
    explained = explain.explain(case, values["min_fit_probability"])
    if case.question.recipe is not None:
        explained = judge.with_bounds(explained, case)
    assumed = values["subject"] is None and "hardware" not in question.inputs
    default = streams.default_text(case.scenario.hardware) if assumed else ""
    streams.write_answer(ctx, "explanation", explained, streams.presentation(ctx, default_hardware=default))


def _case_of_options(question: Question) -> cases.Case:
    require_model({"model": question.stated("model")})
    return cases.priceable(cases.case_of(ranking.with_best_layout(question)))


def case_of_text(text: str, question: Question) -> cases.Case:
    """Return the case of an answer's file, a recipe, or options in quotes, with the command's own options over it."""
    if text.lstrip().startswith("-"):
        return _case_of_options(question.over(_quoted_question(text)))
    if not os.path.exists(text) and names.shipped_name("model", text):  # noqa: PTH110  false for what is no path
        raise click.UsageError(f"{options.shown(text)} is a model, not a file: write '--model {text}'")
    return write.case_of_file(text, question)


def _quoted_question(text: str) -> Question:
    """Return the question of options in quotes, read as on the command line."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise click.UsageError(f"options {options.shown(text.strip())}: {error}") from error
    command = click.Command("options", params=options.open_options(), add_help_option=False)
    with command.make_context("options", words) as ctx:
        options.batch_in_sequences(ctx)
        return question_on_line(ctx)


DOES_NOT_FIT = 1
"""Exit code if nothing is written because the layout would not run."""


def emit(ctx: click.Context, values: Mapping[str, Any]) -> None:
    """Write a recipe."""
    target = options.OTHER_TARGETS.get(values["framework"], values["framework"])
    file = values["layout"]
    question = question_on_line(ctx, without=("framework",))
    if file is None:
        require_model(values)
        if values["framework"] == "deepspeed" and "stack" not in question.inputs:
            question = question.changed(OPTION, stack="deepspeed")
        question, target = write.question_to_launch(question, target)
        case = cases.priceable(cases.case_of(question))
    else:
        case = run.saved_case(file, _stdin() if file == "-" else None, values["rank"], question)
    recipe = write.emit(case, target)
    problem, is_firm = _problem(case)
    if is_firm and not values["force"]:
        streams.tell(f"simulate: error: {problem}; --force writes it all the same")
        ctx.exit(DOES_NOT_FIT)
    if problem:
        streams.note(problem, quiet=streams.verbosity_of(ctx) < 0)
    streams.write(recipe, values["output"])


def _problem(case: cases.Case) -> tuple[str, bool]:
    """Return why a layout may not run, empty if it does, and whether that holds whatever nobody said."""
    estimate = ranking.estimate_of(case)
    sentence = texts.verdict_sentence(estimate, colour=False)
    if estimate.verdict == "depends":
        why = estimate.provenance.cautions[0] if estimate.other_memory else sentence
        return f"whether the layout fits depends: {why.removeprefix('depends: ')}", False
    return "" if estimate.memory.fits else f"the layout {sentence}", not estimate.memory.fits


def _stdin() -> str:
    """Return the text of stdin. Raises InputError if it is closed, too long or no text."""
    if sys.stdin is None:
        raise InputError("stdin: is closed")
    with reading("stdin"):
        text = sys.stdin.read(run.MOST_BYTES + 1)
    if len(text) > run.MOST_BYTES:
        raise InputError(f"stdin: is larger than {run.MOST_BYTES // units.MEGA} MB")
    return text


def check_files(ctx: click.Context, values: Mapping[str, Any]) -> None:
    """Judge every file, write the verdicts, and leave with their exit code."""
    if not values["files"]:
        raise click.UsageError("missing argument 'FILE...': name the recipes to judge, or a folder of them")
    outside = [name for name in values if ctx.get_parameter_source(name) is click.core.ParameterSource.ENVIRONMENT]
    if outside:
        streams.note(
            f"set by the environment: {', '.join(f'SIMULATE_{name.upper()}' for name in outside)}", quiet=False
        )
    for word, written in (("init", ".simulate.yaml"), ("explain", "a table")):
        if values[word] and (streams.form_of(ctx, "verdicts") != "table" or (word == "init" and values["output"])):
            raise click.UsageError(f"--{word} writes {written}: leave out --format, and a file of another form")
    before = None if values["baseline"] is None else folders.read_baseline(values["baseline"])
    passing = _gates(values)
    environment = dict(os.environ) if values["from_environment"] else None
    settings = values_by_name("--set", values["settings"])
    root, base = (_folder(f"--{name}", values[name]) for name in ("root", "base"))
    with streams.progress_bar(quiet=streams.verbosity_of(ctx) < 0, label="files judged") as bar:
        question = question_on_line(ctx)
        files = values["files"]
        results = judge.check_files(files, question, passing, settings, environment, root, base=base, progress=bar)
    if values["init"]:
        _write_settings(results, question.stated("hardware") or "", root or Path.cwd())
        return
    if values["explain"]:
        streams.write(check.origins_text(results), values["output"])
        return
    if before is not None:
        results = folders.ratcheted(results, before)
    if values["diff"]:
        results = patch.patched(results, settings, environment or {}, root)
    changed = None if before is None else folders.compared(results, before)
    checks = verdict.Checks(
        results=results, gates=passing, changed=changed, patches=values["diff"], question=question, settings=settings
    )
    streams.write_answer(ctx, "verdicts", checks, streams.presentation(ctx))
    if values["format"] == "github":
        _append_summary(checks, streams.presentation(ctx))
    ctx.exit(checks.exit_code)


def _write_settings(results: tuple[verdict.Checked, ...], hardware: str, folder: Path) -> None:
    """Write the settings file that asks for what the results could not know. Raises UsageError where one stands."""
    file = folder / repository.NAME
    try:
        with file.open("x", encoding="utf-8", newline="\n") as stream:
            stream.write(repository.skeleton(results, hardware, folder.absolute()))
    except FileExistsError as error:
        raise click.UsageError(f"--init: {options.shown(str(file))} is there already") from error
    except OSError as error:
        raise click.UsageError(f"--init: {options.shown(str(file))}: {error.strerror}") from error
    streams.note(f"written: {file}: fill in what stands empty", quiet=False)


def _folder(option: str, folder: str | None) -> Path | None:
    """Return the folder of an option; None without it."""
    if folder is None:
        return None
    if "\0" in folder or not os.path.isdir(folder):  # noqa: PTH112  false where nobody may look
        raise click.UsageError(f"{option} {options.shown(folder)}: no such folder")
    return Path(folder)


def _append_summary(checks: verdict.Checks, shown_as: Presentation) -> None:
    """Append the verdicts to the job summary, if there is one."""
    file = os.environ.get("GITHUB_STEP_SUMMARY")
    if not file:
        return
    try:
        with open(file, "a", encoding="utf-8", newline="\n") as stream:  # noqa: PTH123  appends
            stream.write(check.github_summary(checks, shown_as))
    except (OSError, ValueError) as error:
        streams.note(f"GITHUB_STEP_SUMMARY cannot be written: {getattr(error, 'strerror', None) or error}", quiet=False)


_PASSED_ON = ("max_memory_fraction", "min_fit_probability", "skip_non_recipes", "exit_zero")


def _gates(values: Mapping[str, Any]) -> gates.Gates:
    words = {word for group in values["fail_on"] for word in group}
    if "starved" in words:  # what is beyond capacity is worse than what is near it
        words.add("does-not-fit")
    fail_on = tuple(outcome for outcome in gates.FAILING if outcome.replace("_", "-") in words) if words else None
    return gates.Gates(fail_on=fail_on, **{name: values[name] for name in _PASSED_ON})
