"""A plan as the object of the schema, and as rows."""

from __future__ import annotations

import dataclasses
from typing import Any

from simulator.show.answers.plan import Choice, LimitCheck, Plan
from simulator.show.report.as_json import SCHEMA_VERSION, estimate_object, run_object, significant, told
from simulator.show.report.presentation import Presentation

_ASKED = ("model", "train_tokens", "deadline_days", "budget", "min_fit_probability")
"""Told as they were asked."""


def plan_object(plan: Plan, presentation: Presentation) -> dict[str, Any]:
    """Return a plan as plain values."""
    return {
        "schema_version": SCHEMA_VERSION,
        **{name: getattr(plan, name) for name in _ASKED},
        "availability": None if plan.availability is None else _figures(plan.availability),
        "offers": [
            {
                "hardware": offer.hardware,
                "nodes": list(offer.nodes),
                "price_per_device_hour": offer.price_per_device_hour,
                "best": _position(plan, plan.best_of(position)),
                "least_nodes_in_time": _position(plan, plan.least_nodes(position)),
            }
            for position, offer in enumerate(plan.offers)
        ],
        "best": _position(plan, plan.best),
        "choices": [_choice(choice, presentation) for choice in plan.choices],
    }


def plan_rows(plan: Plan) -> tuple[list[str], list[list[object]]]:
    """Return the names of the columns and a row for each choice; None is unknown."""
    rows = plan.rows()
    columns = list(rows[0])
    cells = [[significant(cell) if isinstance(cell, float) else cell for cell in row.values()] for row in rows]
    return columns, cells


def _position(plan: Plan, choice: Choice | None) -> int | None:
    return None if choice is None else plan.choices.index(choice)


def _choice(choice: Choice, presentation: Presentation) -> dict[str, Any]:
    return {
        **told(choice, "offer", "hardware", "nodes", "devices", "precision", "verdict"),
        "reason": choice.reason or None,
        "in_time": _kept(choice.in_time),
        "in_budget": _kept(choice.in_budget),
        "pareto": choice.pareto,
        "goodput": None if choice.goodput is None else _figures(choice.goodput),
        "training": None if choice.run is None else run_object(choice.run),
        "estimate": None if choice.estimate is None else estimate_object(choice.estimate, presentation),
    }


def _kept(kept: LimitCheck | None) -> dict[str, Any] | None:
    return None if kept is None else told(kept, "answer", "probability")


def _figures(value: Any) -> dict[str, float | None]:
    return {name: None if figure is None else significant(figure) for name, figure in dataclasses.asdict(value).items()}
