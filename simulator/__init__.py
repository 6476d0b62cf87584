"""Simulator of memory and throughput in training large language models: what `import simulator` offers.

Its functions stand in `simulator.api`, the command line in `simulator.show.cli`. Names are loaded when they are first
used, so that importing the package costs nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from simulator._version import __version__
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

_HOMES = {
    "answers.compare": "Comparison",
    "answers.explain": "Explanation",
    "answers.plan": "Availability Offer Plan",
    "answers.sweep": "Sweep sweep",
    "api": "check compare emit estimate explain from_json plan rank",
    "cost.pricing.estimate": "Estimate",
    "errors": "InputError SimulateError UnsupportedError",
    "question.question": "Question",
    "question.scenario.layout": "Layout",
    "question.specs.catalogue": "load_hardware load_model",
    "recipes.check.verdict": "Checks",
    "search.space": "Ranking Space",
}  # public names by the module that they live in


class _Notebook:
    """Draws answers for notebooks; what draws imports every answer, so not before."""

    def html(self, answer: Tabular) -> str:
        from simulator.show.pages.figures import answer_html  # noqa: PLC0415  start-up time

        return answer_html(answer)

    def json(self, answer: Tabular) -> str:
        from simulator.show.forms import answer_json  # noqa: PLC0415  start-up time

        return answer_json(answer)

    def figure(self, answer: Tabular, name: str) -> Any:
        from simulator.show.pages.figures import answer_figure  # noqa: PLC0415  start-up time

        return answer_figure(answer, name)


Tabular.drawing = _Notebook()


def __getattr__(name: str) -> Any:
    """Load a public name from the module it lives in."""
    home = next((module for module, names in _HOMES.items() if name in names.split()), None)
    if home is None:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    value = getattr(import_module(f"simulator.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Return the public names."""
    return sorted(__all__)
