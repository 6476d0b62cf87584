"""The benchmarks still run. What they measure is not judged here: they are run by hand."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import pairs
from benchmarks.mutations import mutants_of
from benchmarks.quote import BENCHMARKS

ROOT = Path(__file__).resolve().parents[2]

PRICE = """
from benchmarks import price_layouts
from simulator.api import scenario_of
price_layouts.ROUNDS = 1
scenario = scenario_of(model="llama3.1-8b")
chosen = price_layouts.sample(scenario)[:1]
timed = price_layouts.measure(chosen)
price_layouts.report("price", price_layouts.rate(timed, [entry.priced for entry in timed]), 1)
"""
START = """
import sys
from benchmarks import startup
startup.ROUNDS = 1
startup.compare([sys.executable, "-c", "pass"], [sys.executable, "-c", "pass"], one_thread=True)
startup.say_machine()
print(startup.simulate()[0])
"""
CHECK = """
import sys
from benchmarks import check_files
sys.argv = ["check_files", "examples/recipes"]
check_files.main()
"""
SEARCH = """
import json
from benchmarks import search_memory
search_memory.PER_REPLICA = 2
print(json.dumps(search_memory.search_once()))
"""


def output(code: str) -> str:
    """What a fresh process prints: a benchmark sets its environment when it is imported."""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("code", "expected"), [(PRICE, "layouts/s per core"), (START, "processor: "), (CHECK, "3 files, 3 launches: ")]
)
def test_benchmark_runs(code: str, expected: str) -> None:
    assert expected in output(code)


def test_search_counts_every_candidate() -> None:
    found = json.loads(output(SEARCH))
    assert found["evaluated"] == found["feasible"] + sum(found["rejected"].values())
    assert 0 < found["priced"] < found["evaluated"]


def test_a_quote_replaces_its_block_only() -> None:
    before = r"a\n<!-- x:start -->\nold\n<!-- x:end -->\nb"
    code = f"from benchmarks.quote import quoted; print(quoted('{before}', 'x', 'new\\n'))"
    assert output(code) == "a\n<!-- x:start -->\n```\nnew\n```\n<!-- x:end -->\nb\n"


def test_the_page_quotes_every_benchmark() -> None:
    speed = (ROOT / "benchmarks" / "README.md").read_text(encoding="utf-8")
    for name in BENCHMARKS:
        block = speed.split(f"<!-- {name}:start -->")[1].split(f"<!-- {name}:end -->")[0]
        assert all(word in block for word in ("date: 2", "processor: ", "software: Python", "target")), name


def test_mutants_change_one_expression_and_keep_their_names_when_lines_move() -> None:
    code = "def f(a):\n    return max(a, 1) - a // 2\n\n\nLIMIT = zip(a, b, strict=True)\n"
    found = list(mutants_of("x.py", code))
    told = {(one.before, one.after) for one in found}
    assert told == {
        ("max(a, 1) - a // 2", "max(a, 1) + a // 2"),
        ("max(a, 1) - a // 2", "max(a, 1)"),
        ("max(a, 1)", "min(a, 1)"),
        ("1", "2"),
        ("a // 2", "a / 2"),
        ("2", "3"),
        ("2", "1"),
    }
    moved = list(mutants_of("x.py", f"# a line more\n{code}"))
    assert [one.key for one in moved] == [one.key for one in found]
    for one in found:
        assert (one.within, one.nth) == ((1, 2), 0)
        start, end = one.start, one.end
        assert one.applied(code) == f"{code[:start]}({one.after}){code[end:]}"


def test_the_pairs_of_the_plan_page_are_those_of_measured_rows() -> None:
    page = (ROOT / "docs" / "plan.md").read_text(encoding="utf-8")
    assert pairs.HEAD in page
    for name, number in pairs.PAIRS[:2]:
        assert pairs.published_cells(pairs.measured(name, number)) in page
