"""Pages in a real browser: nothing complains, nothing is asked of a network, text stays in its box, keys suffice."""

import importlib.util
import json
import re
import zlib
from base64 import b64decode
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from simulator import api
from simulator.answers.compare import PartDifference
from simulator.answers.ranking import fastest
from simulator.api import plan
from simulator.cost.pricing.estimate import Estimate
from simulator.evidence.calibration.own import judged_runs
from simulator.question.question import question_of
from simulator.question.units import to_gib
from simulator.search.space import Space
from simulator.show.pages import answers
from simulator.show.pages import page as page_module
from simulator.show.pages.answers import accuracy_page, knobs_of
from simulator.show.pages.figures import (
    MOST_PARTS,
    change_figure,
    memory_figure,
    peak_to_mfu,
    plan_figure,
    verdict_figure,
)
from simulator.show.report.presentation import Presentation
from simulator.show.report.text import cluster_speed, grouped
from tests.cli.running import TINY, refusal, run
from tests.pages.browser import CHROMIUM, Browser, browser
from tests.pages.pages import COMMANDS, written
from tests.report import samples

in_browser = pytest.mark.skipif(
    CHROMIUM is None, reason="no Chromium on this machine (Debian: apt-get install chromium)"
)
WIDTHS = (375, 1600)
"""Of a phone and of a screen."""
FIRST_SEEN = """
[...document.querySelectorAll('h1, p, li, th, td')].filter(e => {
  const at = e.getBoundingClientRect();
  return at.right <= 375 && at.bottom <= 667;
}).map(e => e.textContent).join(' ')
"""
"""What a phone shows before anything is moved."""
OUTSIDE = """
[...document.querySelectorAll('.figure')].flatMap(box => {
  const frame = box.getBoundingClientRect();
  return [...box.querySelectorAll('svg text')].filter(text => {
    const at = text.getBoundingClientRect();
    return at.width && (at.left < frame.left - 1 || at.right > frame.right + 1
      || at.top < frame.top - 1 || at.bottom > frame.bottom + 1);
  }).map(text => box.dataset.figure + ': ' + text.textContent);
})
"""
WIDER = """
[...document.querySelectorAll('h1, h2, p, li, pre, summary')].filter(e => e.scrollWidth > e.clientWidth + 1)
  .map(e => e.textContent.slice(0, 60))
"""


@pytest.fixture(scope="module")
def written_pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    return {name: written(name, folder) for name in COMMANDS}


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("browser")) as started:
        yield started


@in_browser
@pytest.mark.parametrize(("width", "dark"), [(WIDTHS[0], False), (WIDTHS[1], True)])
@pytest.mark.parametrize("name", COMMANDS)
def test_a_page_is_shown_whole(
    name: str, width: int, dark: bool, shown: Browser, written_pages: dict[str, Path]
) -> None:
    shown.open(written_pages[name], width, dark=dark)
    assert shown.complaints() == []
    assert shown.run("document.documentElement.scrollWidth") <= width
    assert shown.run(OUTSIDE) == []
    assert shown.run(WIDER) == []
    assert (shown.run("document.querySelectorAll('.figure .main-svg').length") >= 1) == (name != "accuracy")
    if width == max(WIDTHS):
        assert_all_have_names(shown)
    elif name != "accuracy":
        seen = shown.run(FIRST_SEEN)
        assert all(re.search(word, seen) for word in (r"\bfits?\b|does not fit", "GiB", "tokens/s")), seen


@in_browser
def test_dark_and_light_differ(shown: Browser, written_pages: dict[str, Path]) -> None:
    """A page that is open follows a change of scheme, its figures too."""
    colours = "[getComputedStyle(document.body).backgroundColor, document.querySelector('svg text').style.fill]"
    shown.open(written_pages["plan"], 800)
    light = shown.run(colours)
    shown.prefer(dark=True)
    after = shown.run(
        f"new Promise(done => {{ let tries = 500; const look = () => {{ const seen = {colours}; "
        f"seen.some((colour, n) => colour === {json.dumps(light)}[n]) && tries-- ? setTimeout(look, 20) : "
        "done(seen); }; look(); })"
    )
    assert [now != before for now, before in zip(after, light, strict=True)] == [True, True]


def assert_all_have_names(shown: Browser) -> None:
    """What a screen reader tells of the page that is open has names."""
    nodes = shown.call("Accessibility.getFullAXTree")["nodes"]
    roles = ("button", "image", "img", "region", "heading", "columnheader", "link")
    named = [node for node in nodes if not node["ignored"] and node.get("role", {}).get("value") in roles]
    assert {node["role"]["value"] for node in named} >= {"button", "heading"}
    assert [node["role"]["value"] for node in named if not node.get("name", {}).get("value")] == []
    assert shown.run("document.documentElement.lang") == "en"


@in_browser
def test_keys_choose_a_layout_and_sort_a_table(shown: Browser, written_pages: dict[str, Path]) -> None:
    shown.open(written_pages["rank"], 1600)
    first = shown.run("document.getElementById('chosen').textContent")
    shown.run("document.querySelector('tbody tr:nth-child(3) button').focus()")
    shown.press("Enter", 13)
    assert shown.run("document.getElementById('chosen').textContent") != first
    assert shown.run("document.querySelector('tr[aria-current=true]').rowIndex") == 3
    for way, order in (("ascending", 1), ("descending", -1)):
        heads = "[...document.querySelectorAll('thead')[0].querySelectorAll('button')]"
        shown.run(f"{heads}.find(b => b.textContent === 'GiB').focus()")
        shown.press("Enter", 13)
        assert shown.run(f"document.querySelectorAll('th[aria-sort={way}]').length") == 1
        column = shown.run(f"{heads}.findIndex(b => b.textContent === 'GiB')")
        values = shown.run(
            f"[...document.querySelectorAll('tr[data-layout]')].map(r => Number(r.cells[{column}].textContent))"
        )
        assert len(set(values)) > 2
        assert values == sorted(values, reverse=order < 0)


@in_browser
def test_a_dot_shows_its_panels(shown: Browser, written_pages: dict[str, Path]) -> None:
    shown.open(written_pages["rank"], 1600)
    spot = shown.run(
        "(() => { const dot = document.querySelectorAll('[data-figure=pareto] .scatterlayer .trace')[0]"
        ".querySelector('.point'); dot.scrollIntoView({block: 'center'}); const at = dot.getBoundingClientRect();"
        "return [at.x + at.width / 2, at.y + at.height / 2]; })()"
    )
    before = shown.run("document.getElementById('chosen-command').textContent")
    for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
        shown.call("Input.dispatchMouseEvent", type=kind, x=spot[0], y=spot[1], button="left", clickCount=1)
    shown.run("new Promise(done => setTimeout(done, 300))")
    after = shown.run("document.getElementById('chosen-command').textContent")
    assert after != before
    assert after.startswith("simulate estimate ")
    assert run(*after.split()[1:]).exit_code == 0


@in_browser
def test_keys_reach_every_dot(shown: Browser, written_pages: dict[str, Path]) -> None:
    shown.open(written_pages["rank"], 400)
    layouts = embedded(written_pages["rank"])["layouts"]
    shown.run("document.getElementById('choose').focus()")
    seen = []
    for number in (len(layouts), 40):
        shown.run(f"document.getElementById('choose').value = {number}")
        shown.press("ArrowDown", 40)
        seen.append(shown.run("document.getElementById('chosen-command').textContent"))
        assert shown.run("document.getElementById('choose').valueAsNumber") == number - 1
    assert len(set(seen)) == 2
    assert all(text.startswith("simulate estimate ") for text in seen)


def every_dot(data: dict[str, Any], feasible: int) -> list[int]:
    """The dots of a page: what fits, and what the table has with more recomputed layers than that."""
    dots = [index for trace in data["figures"]["pareto"]["data"] for index in trace["customdata"]]
    assert sorted(dots) == list(range(len(dots)))
    assert feasible <= len(dots) <= feasible + 10
    return dots


def test_fewer_dots_than_layouts_are_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "MOST_DOTS", 300)
    page = written("rank", tmp_path)
    shown = sum(len(trace["x"]) for trace in embedded(page)["figures"]["pareto"]["data"])
    feasible = json.loads(run(*COMMANDS["rank"], "--format", "json").stdout)["counts"]["feasible"]
    assert 300 <= shown < feasible
    assert f"{shown} of {feasible} layouts that fit" in page.read_text(encoding="utf-8")


def embedded(page: Path) -> dict[str, Any]:
    found = re.search(r'id="data">(.*?)</script>', page.read_text(encoding="utf-8"), re.DOTALL)
    assert found
    data: dict[str, Any] = json.loads(found[1])
    return {**data, "layouts": json.loads(zlib.decompress(b64decode(data["layouts"])))}


def test_the_page_of_a_ranking_has_every_layout_that_fits(written_pages: dict[str, Path]) -> None:
    counts = json.loads(run(*COMMANDS["rank"], "--format", "json").stdout)["counts"]
    data = embedded(written_pages["rank"])
    assert len(data["layouts"]) == len(every_dot(data, counts["feasible"]))


def test_a_page_tells_how_it_was_made_and_asks_for_nothing(written_pages: dict[str, Path]) -> None:
    for name, page in written_pages.items():
        text = page.read_text(encoding="utf-8")
        assert f"simulate {COMMANDS[name][0]} " in text
        assert name == "accuracy" or "Known: " in text
        assert name == "accuracy" or ", source " in text
        shell = re.sub(r"<script.*?</script>", "", text, flags=re.DOTALL)
        assert not re.findall(r'(?:src|href)="(?!data:|#)', shell)


def test_the_parts_add_up() -> None:
    estimate = samples.calibrated()
    shares = dict(peak_to_mfu(estimate))
    assert sum(share for name, share in shares.items() if name != "MFU") == pytest.approx(shares["MFU"])
    assert shares["MFU"] == pytest.approx(100 * estimate.throughput.mfu)
    spec = memory_figure(estimate)
    bars = [trace for trace in spec["data"] if trace["type"] == "bar"]
    assert sum(bar["y"][0] for bar in bars) == pytest.approx(to_gib(estimate.memory.device_bytes), abs=0.01)
    assert spec["layout"]["shapes"][0]["y0"] == pytest.approx(to_gib(estimate.memory.capacity_bytes))


def test_the_parts_of_a_comparison_lead_from_a_to_b() -> None:
    parts = [PartDifference(name="gemm", first=3.0, second=1.0), PartDifference(name="idle", first=1.0, second=4.0)]
    spec = change_figure(parts, 1.0, "s")
    [trace] = spec["data"]
    assert (trace["y"], trace["x"]) == (["A", "idle", "gemm", "B"], [4.0, 3.0, -2.0, 5.0])
    many = [PartDifference(name=f"part{n}", first=1.0, second=2.0 + n) for n in range(MOST_PARTS + 3)]
    drawn = change_figure(many, 2.0, "s")["data"][0]
    assert drawn["y"][-2] == "others"
    assert sum(drawn["x"][:-1]) == pytest.approx(drawn["x"][-1])


def test_a_recipe_is_drawn_against_what_is_usable() -> None:
    estimate = samples.calibrated()
    [trace] = verdict_figure([("a/very/long/path/to/a/launch/script/for/some/model.sh", "fits", estimate)])["data"]
    assert trace["x"] == [pytest.approx(100 * estimate.memory.device_bytes / estimate.memory.capacity_bytes, abs=0.01)]


def test_an_open_verdict_has_the_colour_of_none() -> None:
    named = [(name, name, samples.calibrated()) for name in ("fits", "cannot_tell", "refused", "not_modelled")]
    [trace] = verdict_figure(named)["data"]
    fits, open_, fails, other = trace["marker"]["color"]
    assert open_ == other
    assert len({fits, open_, fails}) == 3


def test_a_label_is_the_file_before_it_is_cut() -> None:
    names = ("a/llama3-8b-megatron.sh (pretrain_gpt.py)", "a/x.sh (train.py)", f"a/{'n' * 40}.sh")
    spec = verdict_figure([(name, "fits", samples.calibrated()) for name in names])
    labels = spec["layout"]["yaxis"]["ticktext"]
    assert labels[:2] == ["llama3-8b-megatron.sh", "x.sh (train.py)"]
    assert labels[2].startswith("...")


def test_the_page_of_shipped_rows_lists_every_row() -> None:
    judged = [row for row in judged_runs() if row.source == "korthikanti-a100"]
    text = accuracy_page(judged, Presentation(command="simulate accuracy"))
    assert "Speed, every row" in text
    assert all(f">{row.row.key}<" in text for row in judged)
    assert "rows korthikanti-a100, source " in text


def test_own_rows_before_and_after(written_pages: dict[str, Path]) -> None:
    text = written_pages["accuracy"].read_text(encoding="utf-8")
    assert all(header in text for header in ("before %", "after %", "left out %"))


def test_without_prices_a_plan_is_drawn_by_devices() -> None:
    found = plan(model="llama3.2-1b", train_tokens=10**9, offers=["h20:1,2"])
    spec = plan_figure(found.priced, 3.0, None)
    assert spec["data"][0]["y"] == [8, 16]
    assert spec["layout"]["yaxis"]["title"]["text"] == "devices"


def test_where_nothing_fits_there_is_a_page_too(tmp_path: Path) -> None:
    page = tmp_path / "none.html"
    question = ("rank", "--model", "llama3.1-405b", "--hardware", "a100-sxm-40g", "--nodes", "1", "--tp", "8")
    result = run(*question, "--format", "html", "--output", str(page))
    assert result.exit_code == 0, result.stderr
    assert "Nothing fits" in page.read_text(encoding="utf-8")


def test_the_page_of_an_estimate_that_does_not_fit_says_why_and_what_helps(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    question = ("--model", "llama3.1-70b", "--nodes", "2", "--tp", "8", "--pp", "2")
    assert run("estimate", *question, "--format", "html", "--output", str(page)).exit_code == 0
    told = page.read_text(encoding="utf-8")
    explained = json.loads(run("explain", *question, "--format", "json").stdout)
    assert explained["causes"]
    assert explained["changes"]
    for text in (*explained["causes"], *(" ".join(change["options"]) for change in explained["changes"])):
        assert text in told
    assert "Longest sequence that fits" in told


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            (
                *("--nodes", "1", "--tp", "1", "--pp", "1", "--cp", "2", "--micro-batch-size", "1"),
                *("--recompute", "none", "--min-fit-probability", "0.9999"),
            ),
            "likely enough to fit",
        ),
        (("--nodes", "2", "--tp", "16"), "no layout keeps the rules"),
    ],
)
def test_a_page_says_why_nothing_is_recommended(options: tuple[str, ...], said: str, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    question = ("rank", "--model", "llama3.1-8b", "--hardware", "h20", *options)
    result = run(*question, "--format", "html", "--output", str(page))
    assert result.exit_code == 0, result.stderr
    assert said in page.read_text(encoding="utf-8")


def test_without_the_library_the_reason_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(page_module, "find_spec", lambda name: None if name == "plotly" else real(name))
    assert "pip install" in refusal(*TINY, "--format", "html", code=3)


def test_what_a_user_names_cannot_become_markup(tmp_path: Path) -> None:
    model = tmp_path / "x.yaml"
    shipped = Path(__file__).parents[2] / "model_specs" / "llama3.2-1b.yaml"
    text = re.sub(
        r"^note:.*$|\Z",
        'note: "</script><b>bold</b>"',
        shipped.read_text(encoding="utf-8"),
        count=1,
        flags=re.MULTILINE,
    )
    model.write_text(text, encoding="utf-8")
    page = tmp_path / "page.html"
    narrow = ("--hardware", "h20", "--tp", "1", "--pp", "1", "--recompute", "none")
    result = run("rank", "--model", str(model), *narrow, "--format", "html", "--output", str(page))
    assert result.exit_code == 0, result.stderr
    assert "<b>bold" not in page.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def sliders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    page = tmp_path_factory.mktemp("pages") / "sliders.html"
    question = ("--model", "llama3.2-1b", "--hardware", "h20", "--nodes", "2", "--tp", "1,2", "--recompute", "none")
    assert run("rank", *question, "--format", "sliders", "--output", str(page)).exit_code == 0
    return page


@cache
def best_of_the_position() -> Estimate:
    """The best layout of the sliders' question at twice the sequence."""
    space = Space(tensor_parallel=(1, 2), recompute=("none",))
    inputs = {"model": "llama3.2-1b", "hardware": "h20", "nodes": 2, "seq_length": 16_384}
    best = fastest(question_of(inputs, many=True), space=space).recommended
    assert best is not None
    return best


@in_browser
@pytest.mark.parametrize(("width", "dark"), [(400, True), (1400, False)])
def test_sliders_show_the_best_layout_of_their_position(width: int, dark: bool, shown: Browser, sliders: Path) -> None:
    shown.open(sliders, width, dark=dark)
    before = shown.run("document.getElementById('chosen-verdict').textContent")
    shown.run("document.querySelectorAll('input[data-stride]')[1].focus()")
    shown.press("ArrowRight", 39)
    verdict, length = shown.run(
        "[document.getElementById('chosen-verdict').textContent, document.querySelectorAll('output')[1].value]"
    )
    best = best_of_the_position()
    assert (verdict != before, length) == (True, "16,384")
    assert verdict.startswith(f"{grouped(cluster_speed(best))} tokens/s")
    assert shown.run("document.querySelectorAll('input')[1].ariaValueText ?? ''") in ("16,384", "")
    assert "--seq-length 16384" in shown.run("document.getElementById('chosen-command').textContent")
    assert (shown.complaints(), shown.run(OUTSIDE), shown.run(WIDER)) == ([], [], [])
    assert shown.run("document.documentElement.scrollWidth") <= width


def test_a_page_of_sliders_has_every_position() -> None:
    pytest.importorskip("plotly")
    # What has a slider is no matter of the layouts.
    narrow = Space(tensor_parallel=(1,), pipeline_parallel=(1,), context_parallel=(1,), recompute=("none",))
    ranking = api.rank(model="llama3.2-1b", hardware="h20", nodes=1, global_batch_size=8, top=1, space=narrow)
    knobs = tuple(knobs_of(ranking))
    assert [(knob.name, knob.values[knob.start]) for knob in knobs] == [
        ("nodes", 1),
        ("seq_length", 8192),
        ("global_batch_size", 8),
        ("precision", "bf16"),
    ]
    assert [knob.values for knob in knobs] == [(1, 2, 4), (4096, 8192, 16_384, 32_768), (4, 8, 16), ("bf16", "fp8")]
