"""Every format, by its exact text or by its schema."""

import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import jsonschema
import pytest

from simulator.answers.gates import OUTCOMES, CheckOutcome, Gates
from simulator.answers.rules import FRAMEWORK_RULES
from simulator.question.origin import Place, Remark
from simulator.question.units import GIB
from simulator.recipes.check.verdict import Changed, Checked, Checks, Stored
from simulator.search.rules import RULES
from simulator.show.forms import ANSWERS
from simulator.show.report.check import (
    MOST_ANNOTATIONS,
    MOST_SUMMARY_BYTES,
    changed_line,
    check_table,
    github_summary,
    range_line,
    rule_text,
)
from simulator.show.report.presentation import Presentation
from simulator.show.report.schema import schema
from tests.check.recipes import EXAMPLES, judged
from tests.cli.running import run

pytestmark = pytest.mark.full_answer


@cache
def fits() -> Checked:
    return judged(tensor_parallel=2, sequence_parallel=True)


@cache
def refused() -> Checked:
    return judged(pipeline_parallel=2, offload="activations")


WRONG = Checked(file="a,b:c%.sh", outcome="unreadable", passed=False, reasons=("line one\nline 100%",))


def warned() -> Checked:
    remark = Remark("repeated-flag", "warning", "given twice", Place("train.sh", 9), "drop one")
    return replace(fits(), remarks=(remark,))


@cache
def every() -> tuple[Checked, ...]:
    """One of each outcome, too large and without a model among them."""
    return (fits(), judged(), refused(), judged(model=None), WRONG, warned())


def checks(*results: Checked, changed: tuple[Changed, ...] | None = None) -> Checks:
    return Checks(results=results or every(), gates=Gates(), changed=changed)


def text(form: str, *results: Checked, changed: tuple[Changed, ...] | None = None, **shown: Any) -> str:
    return ANSWERS["verdicts"].text(checks(*results, changed=changed), form, Presentation(**shown))


@pytest.mark.parametrize("form", ["table", "json", "markdown", "github", "junit", "sarif"])
def test_formats_end_with_one_newline_and_are_the_same_twice(form: str) -> None:
    found = text(form)
    assert found.endswith("\n")
    assert not found.endswith("\n\n")
    assert found == text(form)


def test_json_keeps_its_schema() -> None:
    before = Stored(outcome="fits", passed=True, device_bytes=2.0**20, step_seconds=2.0)
    changed = (Changed(file="a", title="", kind="removed", before=before, after=None),)
    found = json.loads(text("json", changed=changed))
    jsonschema.Draft202012Validator(schema()["$defs"]["verdicts"] | {"$defs": schema()["$defs"]}).validate(found)
    assert found["changed"][0]["before"] == {"outcome": "fits", "passed": True, "device_mib": 1.0, "step_time_s": 2.0}
    assert [result["outcome"] for result in found["results"]][:3] == ["fits", "does_not_fit", "refused"]
    assert (found["exit_code"], found["counts"]["failed"], found["counts"]["recipes"]) == (2, 4, 6)


def test_github_annotates_the_line_and_escapes() -> None:
    lines = text("github", WRONG).splitlines()
    assert lines == [
        "1 recipe: none judged; 1 not judged (1 unreadable); 1 failed",
        "::error file=a%2Cb%3Ac%25.sh,line=1,title=simulate check%3A unreadable::unreadable: line one line 100%25",
    ]
    (_, line, *_) = text("github", refused()).splitlines()
    assert line.startswith("::error file=train.sh,line=8,title=simulate check%3A refused::refused: ")
    assert "no support for Pipeline parallelism with CPU offloading" in line
    assert text("github", warned()).splitlines()[1] == (
        "::warning file=train.sh,line=9,title=repeated-flag::given twice%0Afix: drop one"
    )


def test_github_aggregates() -> None:
    many = tuple(replace(WRONG, file=f"{number}.sh") for number in range(25))
    lines = text("github", *many).splitlines()
    errors = [line for line in lines if line.startswith("::error")]
    assert len(errors) == MOST_ANNOTATIONS
    assert errors[-1].startswith("::error title=16 more::also: 9.sh, 10.sh")


def test_github_shows_one_reason_once() -> None:
    """What is not judged for the same reason, and what is warned of by the same rule, is one annotation."""
    outcomes: list[CheckOutcome] = ["not_modelled"] * 30
    same = unjudged(*outcomes)
    first, line = text("github", *same).splitlines()
    assert first == "30 recipes: none judged; 30 not judged (30 not modelled); 0 failed"
    assert line.startswith("::notice file=0.sh,line=1,")
    assert "%0Aso in 1.sh, 2.sh, " in line
    warnings = [replace(warned(), file=f"{number}.sh") for number in range(3)]
    assert sum(line.startswith("::warning") for line in text("github", *warnings).splitlines()) == 1


def test_summary_is_a_table_and_bounded() -> None:
    found = github_summary(checks(), Presentation())
    assert found.startswith("## Recipes\n\n6 recipes: 2 fit, 1 does not fit, 1 refused; 2 not judged (")
    huge = replace(WRONG, reasons=("x" * 3_000_000,))
    cut = github_summary(checks(huge), Presentation())
    assert len(cut.encode()) < MOST_SUMMARY_BYTES + 100
    assert cut.endswith("(cut)\n")


def test_summary_is_appended(tmp_path: Path) -> None:
    file = tmp_path / "summary.md"
    file.write_text("before\n", encoding="utf-8")
    script = str(EXAMPLES / "llama3-8b-megatron.sh")
    result = run("check", script, "--hardware", "z2000", "--format", "github", env={"GITHUB_STEP_SUMMARY": str(file)})
    assert result.exit_code == 0
    assert file.read_text(encoding="utf-8").startswith("before\n## Recipes")
    lost = run("check", script, "--format", "github", env={"GITHUB_STEP_SUMMARY": str(tmp_path / "no" / "x")})
    assert "GITHUB_STEP_SUMMARY cannot be written" in lost.stderr


def test_junit_counts_and_escapes() -> None:
    odd = replace(WRONG, reasons=("a < b & c \x01",))
    root = ET.fromstring(text("junit", *every(), odd))  # noqa: S314  our own text
    suite = root[0]
    assert (suite.get("tests"), suite.get("failures"), suite.get("errors")) == ("7", "2", "3")
    kinds = [[child.tag for child in case] for case in suite]
    assert kinds == [["system-out"], ["failure"], ["failure"], ["error"], ["error"], ["system-out"], ["error"]]
    assert suite[6][0].get("message") == "unreadable: a < b & c"
    assert (suite[2][0].text or "").startswith("at train.sh:8\n")


def test_sarif_names_rules_and_lines() -> None:
    found = json.loads(text("sarif"))
    assert found["version"] == "2.1.0"
    (run_,) = found["runs"]
    rules = [rule["id"] for rule in run_["tool"]["driver"]["rules"]]
    assert len(rules) == len(set(rules))
    for item in run_["results"]:
        assert rules[item["ruleIndex"]] == item["ruleId"]
        assert item["level"] in ("error", "warning")
        place = item["locations"][0]["physicalLocation"]
        assert place["region"]["startLine"] >= 1
        assert item["message"]["text"]
    by_rule = {item["ruleId"]: item for item in run_["results"]}
    assert by_rule["megatron-offload-pipeline"]["locations"][0]["physicalLocation"]["region"]["startLine"] == 8
    assert by_rule["unreadable"]["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == "a%2Cb%3Ac%25.sh"
    assert "would fit" in by_rule["does-not-fit"]["message"]["text"]
    described = {rule["id"]: rule["shortDescription"]["text"] for rule in run_["tool"]["driver"]["rules"]}
    assert described["megatron-offload-pipeline"] == "activation offloading does not work with a pipeline"
    assert all(text != rule.replace("-", " ") for rule, text in described.items())
    assert json.loads(text("sarif", fits()))["runs"][0]["results"] == []


def test_every_rule_id_has_one_form_and_a_text() -> None:
    few = judged(model="qwen2.5-14b", tensor_parallel=5, nodes=5)
    found = json.loads(text("sarif", few, judged(tensor_parallel=2, context_parallel=3, nodes=3, seq_length=1000)))
    ids = {item["ruleId"] for item in found["runs"][0]["results"]}
    assert {"megatron-kv-heads", "sequence"} <= ids
    assert not any("_" in rule for rule in ids)
    known = [rule.id for rule in RULES]
    known += [rule.id for rule in FRAMEWORK_RULES]
    known += [outcome for outcome in OUTCOMES if outcome != "skipped"]
    for rule in known:
        assert not rule_text(rule.replace("_", "-")).startswith("a remark of"), rule


def test_table_says_what_matters() -> None:
    found = text("table")
    tally = "6 recipes: 2 fit, 1 does not fit, 1 refused; 2 not judged (1 cannot tell, 1 unreadable); 4 failed"
    assert found.splitlines()[0] == tally
    assert "would fit: --tp 2 (" in found
    assert "peaks, GiB: forward and backward " in found
    assert "[megatron-offload-pipeline]" in found
    quiet = text("table", verbosity=-1)
    assert "would fit" not in quiet
    assert text("table", fits(), verbosity=1).count("peaks") == 1
    assert "\x1b[" in text("table", colour=True)


def test_markdown_is_a_table() -> None:
    assert text("markdown", fits()).splitlines()[3].startswith("|--")


def unjudged(*outcomes: CheckOutcome) -> tuple[Checked, ...]:
    """Recipes without a verdict that pass, as `--fail-on` lets them."""
    return tuple(
        Checked(
            file=f"{number}.sh", outcome=outcome, passed=True, reasons=(f"{number}.sh:{number + 1}: for a reason; x",)
        )
        for number, outcome in enumerate(outcomes)
    )


def test_what_is_not_judged_is_never_silent() -> None:
    passing = unjudged("cannot_tell", "not_modelled", "unreadable")
    first, *lines = text("github", *passing).splitlines()
    assert first == "3 recipes: none judged; 3 not judged (1 cannot tell, 1 not modelled, 1 unreadable); 0 failed"
    assert [line.split(" ", 1)[0] for line in lines] == ["::notice"] * 3
    root = ET.fromstring(text("junit", *passing))  # noqa: S314  our own text
    assert (root[0].get("errors"), root[0].get("skipped")) == ("0", "3")
    levels = {item["level"] for item in json.loads(text("sarif", *passing))["runs"][0]["results"]}
    assert levels == {"warning"}


def test_of_very_many_the_reasons_come_first() -> None:
    unmodelled: list[CheckOutcome] = ["not_modelled"] * 20
    many = (*unjudged(*unmodelled, "cannot_tell", "cannot_tell", "cannot_tell"), refused(), fits())
    shown = text("table", *many, width=100)
    tally, reasons, rows, *_ = shown.split("\n\n")
    assert tally.startswith("25 recipes: 1 fits, 1 refused; 23 not judged (3 cannot tell, 20 not modelled)")
    counts = [line.split()[:2] for line in reasons.splitlines()[2:]]
    assert counts == [["1", "fits"], ["1", "refused"], ["3", "cannot"], ["20", "not"]]
    assert "for a reason" in reasons
    assert [line.split()[0] for line in rows.splitlines()[2:3]] == ["train.sh"]
    assert max(map(len, shown.split("\n\n")[1].splitlines())) <= 100
    assert shown.count("9.sh") == 0
    assert text("table", *many, verbosity=1, width=100).count("9.sh") >= 2


def test_a_narrow_terminal_leaves_columns_out() -> None:
    shown = text("table", *every(), width=60)
    rows = shown.split("\n\n")[1].splitlines()
    assert max(len(line) for line in rows[:-1]) <= 60
    assert rows[-1].startswith("Too narrow for: ")


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (
            ("new_failure", Stored, ("fits", True, 100.0, 2.0), ("does_not_fit", False, 150.0, 2.0)),
            "new failure: a: fits -> does not fit, memory +50.0 %",
        ),
        (
            ("drift", Stored, ("fits", True, 100.0, 2.0), ("fits", True, 100.0, 1.0)),
            "drift: a: fits, step time -50.0 %",
        ),
        (("removed", Stored, ("fits", True, None, None), None), "removed: a: in the baseline only"),
        (("added", Stored, None, ("fits", True, None, None)), "added: a: fits, not in the baseline"),
    ],
)
def test_changes_since_the_baseline_read_well(change: tuple[str, type[Stored], object, object], line: str) -> None:
    kind, _, before, after = change

    def stored(values: object) -> Stored | None:
        if not isinstance(values, tuple):
            return None
        outcome, passed, memory, seconds = values
        return Stored(outcome=outcome, passed=passed, device_bytes=memory, step_seconds=seconds)

    changed = Changed(file="a", title="", kind=kind, before=stored(before), after=stored(after))  # type: ignore[arg-type]  # a kind
    assert changed_line(changed) == line


@pytest.mark.parametrize(("width", "shown"), [(80, True), (100, False), (160, True)])
def test_a_reason_has_the_place_of_an_example_where_it_is_narrow(width: int, shown: bool) -> None:
    reason = "why " * 11 + "not?"
    results = [Checked(file=f"f{n}.sh", outcome="not_modelled", passed=False, reasons=(reason,)) for n in range(13)]
    checks = Checks(results=tuple(results), gates=Gates())
    summary = check_table(checks, Presentation(width=width)).split("\n\n")[1]
    assert (reason in summary, "such as" in summary) == (shown, width > 80)


def sarif(*results: Checked) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(text("sarif", *results))["runs"][0]["results"]
    return found


def test_sarif_asks_for_what_a_person_must_do_and_knows_a_finding_again() -> None:
    assert sarif(warned()) == [], "a warning of a recipe that fits is nothing to act on"
    (found,) = sarif(*unjudged("cannot_tell"))
    assert (found["ruleId"], found["level"]) == ("cannot-tell", "warning")
    file = "x/../recipes/a.sh"
    first, second = (
        replace(judged(), file=file, reasons=(f"needs {need} GiB",), blame=Place(file, line))
        for need, line in (("161.2", 3), ("170.25", 9))
    )
    (one,), (other,) = sarif(first), sarif(second)
    assert one["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == "recipes/a.sh"
    assert one["partialFingerprints"] == other["partialFingerprints"]
    (elsewhere,) = sarif(replace(first, file="b.sh", blame=Place("b.sh", 3)))
    assert elsewhere["partialFingerprints"] != one["partialFingerprints"]
    assert "file=recipes/a.sh," in text("github", first)


def test_quiet_keeps_the_reason_and_many_of_one_kind_are_one_row() -> None:
    assert "a,b:c%.sh: unreadable: line one line 100%" in text("table", WRONG, verbosity=-1)
    (open_one,) = unjudged("cannot_tell")
    many = tuple(
        replace(open_one, file=f"{n}.sh", reasons=(f"the 90 % interval, {n}.5 to {n + 9} GiB, reaches it",))
        for n in range(13)
    )
    (row,) = [line for line in text("table", *many).splitlines() if line.startswith("     13 ")]
    assert "the N % interval, N to N GiB" in row


def test_a_page_of_many_recipes_holds_no_library() -> None:
    many = tuple(replace(fits(), file=f"{number}.sh") for number in range(200))
    assert len(text("html", *many)) < 1_000_000


def test_an_interval_over_the_capacity_of_what_fits_says_what_goes_back() -> None:
    """A firm verdict beside an interval that reaches over the memory would be a riddle."""
    result = fits()
    assert result.estimate is not None
    memory = result.estimate.memory
    assert memory.interval_bytes is not None
    (line,) = range_line(result)
    assert "given back" not in line
    wide = replace(memory.interval_bytes, high=memory.capacity_bytes + GIB)
    (line,) = range_line(
        replace(result, estimate=replace(result.estimate, memory=replace(memory, interval_bytes=wide)))
    )
    cached_bytes = memory.device_bytes - memory.need_bytes
    assert f" GiB, {cached_bytes / GIB:.2f} of them cached blocks that are given back; " in line


TUNED = """model_name_or_path: Qwen/Qwen3-8B
stage: sft
do_train: true
finetuning_type: lora
lora_rank: 8
cutoff_len: 2048
per_device_train_batch_size: BATCH
bf16: true
template: qwen3
dataset: x
output_dir: o
packing: true
"""


@pytest.mark.full_answer
def test_text_and_json_say_the_same_verdict(tmp_path: Path) -> None:
    """A run decides near capacity: neither the recipe's figures nor a change's are called firm in either."""
    file, seen = tmp_path / "lora.yaml", set[str]()
    for batch in (1, 2, 3, 8):
        file.write_text(TUNED.replace("BATCH", str(batch)), encoding="utf-8")
        words = (str(file), "--hardware", "rtx-4090", "--devices", "1")
        text = " ".join(run("check", *words).stdout.split())
        (result,) = json.loads(run("check", *words, "--format", "json").stdout)["results"]
        outcome, estimate = result["outcome"], result["estimate"]
        seen.add(outcome)
        assert estimate["verdict"] == ("depends" if outcome == "cannot_tell" else outcome)
        assert f"{outcome.replace('_', ' ')}: needs" in text
        for change in result["changes"]:
            verb = {"fits": "would", "depends": "may"}[change["estimate"]["verdict"]]
            seen.add(verb)
            assert f"{verb} fit: {change['options']} (" in text or f"{verb} pass: {change['options']} (" in text
        explained = run("explain", *words).stdout
        assert f"{outcome.replace('_', ' ')}: needs" in " ".join(explained.split())
        found = json.loads(run("explain", *words, "--format", "json").stdout)
        assert (found["outcome"] or found["estimate"]["verdict"]) == outcome
        assert found["estimate"]["verdict"] == estimate["verdict"]
    assert seen == {"fits", "cannot_tell", "does_not_fit", "would", "may"}
