"""Columns of a measured row, taken from a log, a recipe or a saved estimate."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from simulator.answers.cases import Case, case_of_recipe, priceable
from simulator.answers.saved import is_answer, saved_case
from simulator.errors import InputError
from simulator.evidence.measurements.question import case_columns, spec_text
from simulator.evidence.measurements.rows import LAYOUT_COLUMNS, WORKLOAD_COLUMNS, MeasuredRow
from simulator.question.origin import Origin
from simulator.question.question import Question, question_of
from simulator.question.specs.catalogue import load_model
from simulator.question.specs.names import model_names
from simulator.recipes.logs import read_log
from simulator.recipes.readers.read import read_recipe

_LOGS: Final = frozenset({".log", ".out", ".err", ".txt"})
_NAMES: Final = frozenset({"table", "row", "source", "source_ref"})
"""Columns that identify a row and are never taken from a file."""


def stand_in(files: Sequence[Path], known: Mapping[str, Any]) -> dict[str, Any]:
    """Return the columns that files state of one run, without those in `known`; a log overrides recipes and estimates.

    Raises InputError for a file that states none, and lists what a log lacks.
    """
    columns: dict[str, Any] = {}
    for file in files:
        if file.suffix.lower() not in _LOGS:
            columns = _asked(file, dict(columns) | dict(known)) | columns
    for file in files:
        if file.suffix.lower() in _LOGS:
            columns |= _logged(file, columns | dict(known), frozenset(known))
    return {name: value for name, value in columns.items() if name not in known}


def _logged(file: Path, columns: Mapping[str, Any], fixed: frozenset[str]) -> dict[str, Any]:
    """Return the columns that a log states of its run."""
    hardware = columns.get("hardware")
    if not hardware:
        raise InputError(f"{file}: logs do not say the hardware; give it in column hardware")
    rows = read_log(file, hardware=str(hardware), columns=columns, fixed=fixed)
    if len(rows) != 1:
        raise InputError(f"{file}: holds {len(rows)} runs; --from-log reads them as rows of their own")
    blank = {field.name: field.default for field in dataclasses.fields(MeasuredRow)}
    values = ((name, getattr(rows[0], name)) for name in blank if name not in _NAMES)
    return {name: value for name, value in values if value != blank[name]}


def _asked(file: Path, known: Mapping[str, Any]) -> dict[str, Any]:
    """Return the columns of a recipe's or a saved estimate's question, with its hardware if stated."""
    case, hardware = _case(file, known)
    scenario = case.scenario
    name = _model_name(case, str(known.get("model") or case.question.stated("model") or ""))
    layers = None
    if not name.startswith("{") and scenario.model.num_hidden_layers != load_model(name).num_hidden_layers:
        layers = scenario.model.num_hidden_layers
    options = case.question.options
    columns = case_columns(scenario, case.layout, model=name, options=options, num_layers=layers)
    if hardware:
        columns["hardware"] = hardware
    return {key: value for key, value in columns.items() if value not in (None, ())}


def _case(file: Path, known: Mapping[str, Any]) -> tuple[Case, str]:
    """Return the case of a file, and the hardware that the file names, else empty."""
    options = _known_question(known)
    if file.suffix.lower() == ".json" and is_answer(str(file)):
        case = saved_case(str(file), None, 1, options)
        return case, case.scenario.hardware_name
    recipes = read_recipe(file)
    if len(recipes) != 1:
        raise InputError(f"{file}: holds {len(recipes)} launches; a row is of one")
    if "hardware" not in options.inputs:
        raise InputError(f"{file}: recipes do not say the hardware; give it in column hardware or with --hardware")
    return priceable(case_of_recipe(recipes[0], options)), ""


def _known_question(known: Mapping[str, Any]) -> Question:
    """Return a row's own cells as a question, which overrides a file."""
    names = ("model", "hardware", "devices", *WORKLOAD_COLUMNS, "num_layers", "framework", *LAYOUT_COLUMNS)
    cells = {name: known[name] for name in names if known.get(name)} | {"options": dict(known.get("options") or ())}
    return question_of(cells, origin=lambda name: Origin("argument", f"column {name}"))


def _model_name(case: Case, name: str) -> str:
    """Return a name that identifies the question's model: a shipped name, a path, or the spec itself."""
    model = case.scenario.model
    for candidate in dict.fromkeys((name, model.name)):
        if candidate and (candidate in model_names() or Path(candidate).exists()):
            spec = load_model(candidate)
            if spec.with_layers(model.num_hidden_layers) == model or spec == model:
                return candidate
    return spec_text(model)
