"""Memory and throughput of training a large language model, before the hardware is booked.

Names are loaded when they are first used, so that importing the package costs nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from simulator._version import __version__

if TYPE_CHECKING:
    from simulator.api import estimate, rank
    from simulator.cost.pricing.estimate import Estimate
    from simulator.errors import InputError, SimulateError, UnsupportedError
    from simulator.question.scenario.layout import Layout
    from simulator.question.specs.catalogue import load_hardware, load_model
    from simulator.search.result import Ranking
    from simulator.search.space import Space
    from simulator.show.answers.availability import Availability
    from simulator.show.answers.compare import Comparison, compare
    from simulator.show.answers.explain import Explanation
    from simulator.show.answers.offers import Offer
    from simulator.show.answers.plan import Plan, plan
    from simulator.show.answers.program import Checks, check, emit, explain
    from simulator.show.answers.sweep.run import Sweep, sweep

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
    "load_hardware",
    "load_model",
    "plan",
    "rank",
    "sweep",
]

_HOMES = {
    "Availability": "simulator.show.answers.availability",
    "Checks": "simulator.show.answers.program",
    "Comparison": "simulator.show.answers.compare",
    "Estimate": "simulator.cost.pricing.estimate",
    "Explanation": "simulator.show.answers.explain",
    "InputError": "simulator.errors",
    "Layout": "simulator.question.scenario.layout",
    "Offer": "simulator.show.answers.offers",
    "Plan": "simulator.show.answers.plan",
    "Ranking": "simulator.search.result",
    "SimulateError": "simulator.errors",
    "Space": "simulator.search.space",
    "Sweep": "simulator.show.answers.sweep.run",
    "UnsupportedError": "simulator.errors",
    "check": "simulator.show.answers.program",
    "compare": "simulator.show.answers.compare",
    "emit": "simulator.show.answers.program",
    "estimate": "simulator.api",
    "explain": "simulator.show.answers.program",
    "load_hardware": "simulator.question.specs.catalogue",
    "load_model": "simulator.question.specs.catalogue",
    "plan": "simulator.show.answers.plan",
    "rank": "simulator.api",
    "sweep": "simulator.show.answers.sweep.run",
}


def __getattr__(name: str) -> Any:
    """Load a public name from the module it lives in."""
    if name not in _HOMES:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Return the public names."""
    return sorted(__all__)
