"""Simulator of memory and throughput in training large language models: what `import simulator` offers.

Its functions stand in `simulator.api`, the command line in `simulator.show.cli`. Names are loaded when they are first
used, so that importing the package costs nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from simulator._version import __version__
from simulator.late import Lazy
from simulator.tabular import Tabular

if TYPE_CHECKING:
    from simulator.answers.compare import Comparison
    from simulator.answers.explain import Explanation
    from simulator.answers.plan import Availability, Offer, Plan
    from simulator.answers.sweep import Sweep, sweep
    from simulator.api import check, compare, emit, estimate, explain, from_json, plan, rank
    from simulator.cost.pricing.estimate import Estimate
    from simulator.errors import InputError, SimulateError, UnsupportedError
    from simulator.question.question import Question
    from simulator.question.scenario.layout import Layout
    from simulator.question.specs.catalogue import load_hardware, load_model
    from simulator.recipes.check.verdict import Checks
    from simulator.search.space import Ranking, Space

__all__ = [
    "Availability",
    "Checks",
    "Comparison",
    "Estimate",
    "Explanation",
    "InputError",
    "Layout",
    "Offer",
    "Plan",
    "Question",
    "Ranking",
    "SimulateError",
    "Space",
    "Sweep",
    "UnsupportedError",
    "__version__",
    "check",
    "compare",
    "emit",
    "estimate",
    "explain",
    "from_json",
    "load_hardware",
    "load_model",
    "plan",
    "rank",
    "sweep",
]

Tabular.forms, Tabular.figures = Lazy("show.forms"), Lazy("show.pages.figures")


def __getattr__(name: str) -> Any:
    """Load a public name from `simulator.api`, which imports all of them."""
    if name not in __all__:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    value = globals()[name] = getattr(import_module("simulator.api"), name)
    return value


def __dir__() -> list[str]:
    """Return the public names."""
    return sorted(__all__)
