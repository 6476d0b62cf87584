"""A repository's own words: what `.simulate.yaml` and comments say counts, strictly, and no stranger's do."""

import json
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from tests.check.bare import without_advice
from tests.check.recipes import ROOT
from tests.cli.running import run

LAUNCH = (
    "torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 8 --hidden-size 1024 --num-attention-heads 16 "
    "--seq-length $LENGTH --max-position-embeddings 4096 --micro-batch-size 1 --global-batch-size 64 "
    "--vocab-size 32000 --bf16\n"
)
OWN = (
    "torchrun --nproc_per_node 8 train/main.py --bs 1 --layers=8 --hidden-size 1024 --num-attention-heads 16 "
    "--seq-length 4096 --max-position-embeddings 4096 --global-batch-size 64 --vocab-size 32000 --tag $TAG x --bf16\n"
)
REFUSED = LAUNCH.replace("$LENGTH", "8192")  # longer than the positions


@pytest.fixture(autouse=True)
def _repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / "a").mkdir()
    monkeypatch.chdir(tmp_path)
    without_advice(monkeypatch)


def put(name: str, text: str) -> str:
    Path(name).parent.mkdir(parents=True, exist_ok=True)
    Path(name).write_text(text, encoding="utf-8")
    return name


def results(*args: str) -> list[dict[str, Any]]:
    found = json.loads(run("check", *args, "--format", "json").stdout)["results"]
    assert isinstance(found, list)
    return found


def rules(result: dict[str, Any]) -> set[str]:
    return {remark["rule"] for remark in result["remarks"]}


def test_values_by_pattern_count_and_options_beat_them() -> None:
    put("a/run.sh", LAUNCH)
    assert results("a/run.sh")[0]["outcome"] == "cannot_tell"
    put(".simulate.yaml", 'hardware: a100-sxm-40g\nfiles:\n  "a/*": {nodes: 2, set: {LENGTH: 2048}}\n')
    (result,) = results("a/run.sh")
    estimate = result["estimate"]
    assert (estimate["hardware"], estimate["devices"], estimate["layout"]["seq_length"]) == ("a100-sxm-40g", 16, 2048)
    assert "unused-setting" not in rules(result)
    (result,) = results("a/run.sh", "--hardware", "h20", "--devices", "8", "--set", "LENGTH=1024")
    estimate = result["estimate"]
    assert (estimate["hardware"], estimate["devices"], estimate["layout"]["seq_length"]) == ("h20", 8, 1024)


def test_lengths_and_images_by_pattern() -> None:
    put("a/run.sh", LAUNCH)
    put("data/lengths.csv", "512,90\n1024,10\n")
    put("data/wrong.csv", "512,90\n1024,0\n")
    said = "hardware: h20\nnodes: 1\nset: {LENGTH: 8192}\n"
    put(".simulate.yaml", f'{said}files: {{"a/*": {{lengths: data/lengths.csv, batching: sorted}}}}\n')
    estimate = results("a/run.sh")[0]["estimate"]
    assert (estimate["layout"]["seq_length"], estimate["lengths"]["batching"]) == (1024, "sorted")
    for words, message in (
        ("lengths: data/wrong.csv", ":5: data/wrong.csv:2: 1024,0: '0' is no count"),
        ("lengths: p50=900", ":5: lengths p50=900: max is missing"),
        ("batching: stacked", ":5: batching 'stacked'"),
        ("images: 4x1024", ":5: images '4x1024': write NUMBERxWIDTHxHEIGHT"),
        ("lengths: absent.csv", ":5: lengths 'absent.csv': no such file"),
    ):
        put(".simulate.yaml", f'{said}files:\n  "a/*": {{{words}}}\n')
        assert f".simulate.yaml{message}" in " ".join(run("check", "a/run.sh").stderr.split())


def test_the_last_pattern_and_the_nearest_file_and_a_comment_count() -> None:
    put(".simulate.yaml", 'hardware: h20\nfiles: {"*.sh": {set: {LENGTH: 512}}, "a/*": {set: {LENGTH: 1024}}}\n')
    put("a/run.sh", LAUNCH)
    put("b/run.sh", f"# simulate: hardware=a100-sxm-80g\n{LAUNCH}")
    put("c/.simulate.yaml", "hardware: h800-sxm-80g\nset: {LENGTH: 256}\n")
    put("c/run.sh", LAUNCH)
    estimates = {each["file"]: each["estimate"] for each in results("a", "b", "c")}
    shown = {file: (each["hardware"], each["layout"]["seq_length"]) for file, each in estimates.items()}
    assert shown == {
        "a/run.sh": ("h20", 1024),
        "b/run.sh": ("a100-sxm-80g", 512),
        "c/run.sh": ("h800-sxm-80g", 256),
    }


def test_a_trainer_of_ones_own_is_read_by_its_map() -> None:
    put("a/run.sh", OWN)
    assert results("a/run.sh")[0]["outcome"] == "not_modelled"
    flags = '{--bs: --micro-batch-size, --layers: --num-layers, --tag: ""}'
    put(".simulate.yaml", f"trainers:\n  main.py: {{like: pretrain_gpt.py, flags: {flags}}}\n")
    (result,) = results("a/run.sh")
    assert result["outcome"] == "fits", result["reasons"]
    assert "unknown-flag" not in rules(result)


def test_what_is_left_out_is_passed_over() -> None:
    put("a/run.sh", LAUNCH)
    put(".simulate.yaml", "exclude: [a]\n")
    (result,) = results("a")
    assert (result["outcome"], result["reasons"]) == ("skipped", ["a/run.sh: left out by .simulate.yaml:1"])
    tally = run("check", ".").stdout
    assert "; 1 left out by .simulate.yaml" in tally
    assert "no training" not in tally


@pytest.mark.parametrize("count", [1, 20])
def test_a_pattern_that_matches_nothing_is_noted(count: int) -> None:
    for number in range(count):
        put(f"a/{number}.sh", LAUNCH)
    put(".simulate.yaml", 'files:\n  "a/*": {set: {LENGTH: 4096}}\n  "b/*": {nodes: 2}\nexclude: [c.sh]\n')
    first = results(".")[0]
    assert (first["file"], first["outcome"]) == (".simulate.yaml", "skipped")
    assert [remark["place"]["line"] for remark in first["remarks"]] == [3, 4]
    shown = run("check", ".").stdout
    assert "note: the pattern 'b/*' matches no file" in shown
    assert "note: the pattern 'c.sh' matches no file" in shown
    assert "skipped: no training" not in shown


@pytest.mark.parametrize("where", ["file", "comment"])
def test_what_is_ignored_fails_no_check_and_keeps_its_verdict(where: str) -> None:
    put("a/run.sh", REFUSED)
    (result,) = results("a/run.sh")
    assert (result["outcome"], result["passed"]) == ("refused", False)
    (rule,) = {remark["rule"] for remark in result["remarks"] if remark["severity"] == "error"}
    if where == "file":
        put(".simulate.yaml", f"ignore: {{{rule}: positions are patched}}\n")
    else:
        put("a/run.sh", f"# simulate: ignore[{rule}] positions are patched\n{REFUSED}")
    (result,) = results("a/run.sh")
    assert (result["outcome"], result["passed"]) == ("refused", True)
    assert run("check", "a/run.sh").exit_code == 0
    assert any("positions are patched" in remark["message"] for remark in result["remarks"])


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            "hardware: h20\nfiles:\n  a.sh:\n    nodez: 1\n",
            ".simulate.yaml:4: files.a.sh.nodez: unknown key, did you mean",
        ),
        ("hardware: h2O\n", ".simulate.yaml:1: unknown hardware 'h2O', did you mean 'h20'"),
        ("nodes: 0\n", ".simulate.yaml:1: nodes: "),
        ("nodes: 1\ndevices: 8\n", ".simulate.yaml:2: nodes and devices exclude each other"),
        ("ignore:\n  megatron-batches: a\n", ".simulate.yaml:2: ignore: unknown rule 'megatron-batches', did you mean"),
        ("ignore:\n  megatron-batch: ''\n", ".simulate.yaml:2: ignore.megatron-batch: "),
        ("- a\n", "must hold a mapping"),
        ("[]\n", "must hold a mapping"),
        ("exclude: r1\n", ".simulate.yaml:1: exclude: 'r1': must be a list"),
        ('files:\n  "*.sh": 4\n', ".simulate.yaml:2: files.*.sh: '4': must be a mapping"),
        ("ignore:\n  megatron-batch:\n", ".simulate.yaml:2: ignore.megatron-batch: is empty: must be text"),
        (
            "files:\n  a.sh:\n    flags: {a: b}\n",
            ".simulate.yaml:3: files.a.sh.flags: unknown key; allowed: hardware, ",
        ),
        (
            "trainers:\n  a.py: {exclude: 3}\n",
            ".simulate.yaml:2: trainers.a.py.exclude: unknown key; allowed: like, flags",
        ),
        ("set: {a: [1]}\n", ".simulate.yaml:1: set.a: must be text up to 4000 characters, a number, true or false"),
    ],
)
def test_wrong_settings_are_one_line(text: str, line: str) -> None:
    put("a/run.sh", LAUNCH)
    put(".simulate.yaml", text)
    ended = run("check", "a/run.sh")
    assert ended.exit_code == 2
    assert line in ended.stderr
    assert len(ended.stderr.splitlines()) == 1


@pytest.mark.parametrize("comment", ["hardwere=h20", "ignore[megatron-batches] a", "ignore[megatron-batch]", "nodes=x"])
def test_a_wrong_comment_is_its_files_own_error(comment: str) -> None:
    put("a/run.sh", f"# simulate: {comment}\n{LAUNCH}")
    put("b/run.sh", LAUNCH.replace("$LENGTH", "4096"))
    first, second = results("a/run.sh", "b/run.sh")
    assert first["outcome"] == "unreadable"
    assert first["reasons"][0].startswith("a/run.sh:1: ")
    assert second["outcome"] == "fits"


def test_prose_that_begins_alike_is_no_comment_of_ours() -> None:
    put("a/run.sh", f"# simulate: a slow network\n{LAUNCH.replace('$LENGTH', '4096')}")
    assert results("a/run.sh")[0]["outcome"] == "fits"


def test_settings_are_no_leave_to_read_elsewhere(tmp_path_factory: pytest.TempPathFactory) -> None:
    outside = tmp_path_factory.mktemp("outside") / "ds.json"
    outside.write_text('{"zero_optimization": {"stage": 3}}', encoding="utf-8")
    put("a/run.sh", LAUNCH)
    for text in (f"set: {{ds.json: {outside}}}\n", f"model: {outside}\n", f"hardware: {outside}\n"):
        put(".simulate.yaml", text)
        ended = run("check", "a/run.sh")
        assert (ended.exit_code, "leads out of the repository" in ended.stderr) == (2, True), text


def test_a_change_quiets_nothing_before_it_is_merged(tmp_path_factory: pytest.TempPathFactory) -> None:
    base = tmp_path_factory.mktemp("base")
    (base / "a").mkdir()
    (base / "a" / "run.sh").write_text(REFUSED, encoding="utf-8")
    (base / ".simulate.yaml").write_text("hardware: h20\n", encoding="utf-8")
    put(".simulate.yaml", "hardware: h20\nignore: {refused: please}\nexclude: [a]\n")
    put("a/run.sh", f"# simulate: ignore[refused] please\n# simulate: hardware=b200-sxm\n{REFUSED}")
    found = {each["file"]: each for each in results(".", "--base", str(base))}
    assert (found["a/run.sh"]["outcome"], found["a/run.sh"]["passed"]) == ("refused", False)
    assert [each["rule"] for each in found[".simulate.yaml"]["remarks"]] == ["settings-changed"]
    lines = run("check", ".", "--base", str(base), "--format", "github").stdout.splitlines()
    changed = [line for line in lines if "title=settings-changed" in line]
    assert {line.partition("file=")[2].partition(",")[0] for line in changed} == {".simulate.yaml", "a/run.sh"}
    # What the base says too counts.
    (base / "a" / "run.sh").write_text(f"# simulate: ignore[refused] please\n{REFUSED}", encoding="utf-8")
    assert results("a", "--base", str(base))[0]["passed"]


def test_init_asks_for_each_open_value_once() -> None:
    put("a/run.sh", LAUNCH)
    put("a/other.sh", LAUNCH)
    put("b/own.sh", OWN)
    assert run("check", ".", "--hardware", "h20", "--init").exit_code == 0
    text = Path(".simulate.yaml").read_text(encoding="utf-8")
    assert text.count("LENGTH") == 1
    assert '"a/*":' in text
    assert '"main.py": {like: pretrain_gpt.py' in text
    assert results("a/run.sh")[0]["outcome"] == "cannot_tell", "an empty value says nothing"
    put(".simulate.yaml", text.replace('"LENGTH":', '"LENGTH": 4096'))
    assert {each["outcome"] for each in results("a")} == {"fits"}
    assert run("check", ".", "--init").exit_code == 2, "what is there is not replaced"


def test_init_writes_no_hardware_that_nobody_named() -> None:
    put("a/run.sh", LAUNCH.replace("$LENGTH", "4096"))
    assert run("check", ".", "--init").exit_code == 0
    assert "hardware-assumed" in rules(results("a/run.sh")[0])
    put(".simulate.yaml", Path(".simulate.yaml").read_text(encoding="utf-8").replace("hardware:", "hardware: h20"))
    assert "hardware-assumed" not in rules(results("a/run.sh")[0])


def test_explain_says_who_said_each_value() -> None:
    put("a/run.sh", f"# a\n# simulate: nodes=2\n{LAUNCH}")
    put(".simulate.yaml", "hardware: h20\nset: {LENGTH: 2048}\n")
    lines = run("check", "a/run.sh", "--explain", "--model-field", "vocab_size=64000").stdout.splitlines()
    said = {line.split()[0]: line.split(maxsplit=2)[2] for line in lines[3:] if len(line.split()) > 2}
    assert said["hardware"] == ".simulate.yaml:1"
    assert said["nodes"] == "a/run.sh:2"
    assert said["vocab_size"] == "the command line"
    assert said["micro_batch_size"] == "a/run.sh:3"
    assert said["offload"] == "megatron's default"


def test_what_states_nothing_is_explained_too() -> None:
    assert run("check", "--explain", "nosuch.sh").stdout == "nosuch.sh: unreadable\nnot known: no such file\n"
    assert run("check", "--explain", "nosuch.sh", "--output", "x.txt").exit_code == 0
    assert "unreadable" in Path("x.txt").read_text(encoding="utf-8")
    for word in ("--explain", "--init"):
        for options in (("--format", "json"), ("--output", "x.json")):
            ended = run("check", word, "nosuch.sh", *options)
            assert (ended.exit_code, len(ended.stderr.splitlines())) == (2, 1)
            assert f"{word} writes " in ended.stderr
    assert not Path("x.json").exists()


def test_the_walk_of_the_page_is_true() -> None:
    """What `--init` writes and what the page fills in, on the page's own script."""
    page = (ROOT / "docs" / "check.md").read_text(encoding="utf-8")
    walk = page.partition("## From a checkout")[2].partition("\n## ")[0]
    assert len(page.partition("## A repository's own words")[0].splitlines()) < 60
    script = walk.partition("```bash\n")[2].partition("```")[0]
    asked, filled = (dedent(block.partition("```")[0]) for block in walk.split("```yaml\n")[1:])
    put("train/run.sh", script)
    put("train/llama.sh", LAUNCH)
    assert run("check", ".", "--hardware", "h100-sxm-80g", "--init").exit_code == 0
    written = Path(".simulate.yaml").read_text(encoding="utf-8").splitlines()
    assert [line for line in written if not line.startswith("#")] == asked.splitlines()
    put(".simulate.yaml", filled)
    assert {each["outcome"] for each in results(".")} == {"fits"}
    assert run("check", ".").exit_code == 0
