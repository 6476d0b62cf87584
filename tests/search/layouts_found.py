"""A search whose lists are layouts: what most tests compare."""

from types import SimpleNamespace
from typing import Any

from simulator.question.question import question_of
from simulator.question.scenario.scenario import Scenario
from simulator.search.rank import search as search_query
from simulator.search.space import Query, Space


def search(scenario: Scenario, space: Space, *, least: float = 0.0, **more: Any) -> Any:
    """What a search finds with the exchange of experts that the scenario has, layouts in place of priced ones."""
    options = {"expert_dispatch": scenario.framework.expert_dispatch}
    question = question_of({"options": options})
    query = Query(scenario=scenario, question=question, space=space, min_fit_probability=least)
    found = search_query(query, **more)
    lists: dict[str, Any] = {name: getattr(found, name) for name in ("fastest", "risky", "starved", "nearest")}
    return SimpleNamespace(**found._asdict() | {name: [x.layout for x in listed] for name, listed in lists.items()})
