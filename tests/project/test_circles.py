"""No module imports, on its way or when a function of it runs, one that imports it."""

import grimp
import pytest


def circles(imports: dict[str, set[str]]) -> list[list[str]]:
    """Groups of modules that reach each other (Tarjan's strongly connected components)."""
    order: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(module: str) -> None:
        order[module] = lowest[module] = len(order)
        stack.append(module)
        for other in imports[module]:
            if other not in order:
                visit(other)
            if other in stack:
                lowest[module] = min(lowest[module], lowest[other])
        if lowest[module] == order[module]:
            place = stack.index(module)
            found.append(sorted(stack[place:]))
            del stack[place:]

    for module in imports:
        if module not in order:
            visit(module)
    return [group for group in found if len(group) > 1]


def test_a_circle_is_seen() -> None:
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"a", "b"}}) == [["b", "c"]]


@pytest.mark.static
def test_no_import_leads_back() -> None:
    graph = grimp.build_graph("simulator", cache_dir=None)
    imports = {module: graph.find_modules_directly_imported_by(module) for module in sorted(graph.modules)}
    assert sum(map(len, imports.values())) > 1000
    assert circles(imports) == []
