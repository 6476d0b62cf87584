"""Lengths that differ: means, waits, where a run fails, wrong ones, and published rows with and without lengths."""

import csv
import json
import re
import shlex
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import simulator
from simulator.answers.cases import case_of, priceable
from simulator.answers.ranking import estimate_of
from simulator.cost.timing.step import _Waiting, expected_slowest, work_of_micro_batch
from simulator.errors import InputError
from simulator.question.question import question_of
from simulator.question.scenario.lengths import Lengths
from tests.cli.running import run
from tests.docs.pages import DOCS, page

ONE: dict[str, Any] = {"model": "llama3.1-8b", "hardware": "h100-sxm-80g", "nodes": 1, "tp": 8, "stack": "default"}
SPREAD = "p50=900,p90=3k,max=16k"


def estimate(**inputs: Any) -> simulator.Estimate:
    return simulator.estimate(**(ONE | {"global_batch_size": 8} | inputs))


@pytest.mark.full_answer
@pytest.mark.parametrize("batching", ["padded", "sorted", "packed", "packed_across", "packed_dynamic"])
def test_equal_lengths_are_a_sequence_length(batching: str) -> None:
    assert estimate(lengths=[4096] * 3, batching=batching) == estimate(seq_length=4096)


def test_attention_of_a_package_is_the_sum_over_its_samples() -> None:
    samples = [1000, 3000, 1000, 3000]
    packed = estimate(lengths=samples, batching="packed", cutoff=8000, global_batch_size=1)
    alone = [estimate(lengths=[tokens], global_batch_size=1) for tokens in samples]
    summed = sum(each.throughput.parts_seconds["attention"] for each in alone)
    assert packed.throughput.parts_seconds["attention"] == pytest.approx(summed, rel=0.01)
    # By hand: 4 FLOP a score, query width 4,096, 32 layers, three passes, over (1000^2 + 3000^2) / 4000 tokens.
    across = estimate(lengths=samples, batching="packed_across", cutoff=8000, global_batch_size=1)
    flops = across.throughput.model_flops_per_token - packed.throughput.model_flops_per_token
    assert flops == pytest.approx(3 * 4 * 4096 * 32 * (8000 - 2500))


def test_short_samples_of_a_package_need_no_exchange() -> None:
    inputs: dict[str, Any] = {"tp": 1, "cp": 8, "cutoff": 32768, "lora_rank": 8, "global_batch_size": 1}

    def packed(batching: str, lengths: dict[int, int]) -> simulator.Estimate:
        return estimate(**inputs, batching=batching, lengths=lengths)

    # 4,096 tokens a rank: samples of 1,024 fill one, those of 32,768 all eight; both have half of the tokens.
    mixed = {1024: 32, 32768: 1}
    fixed, dynamic = (packed(batching, mixed) for batching in ("packed", "packed_dynamic"))
    assert dynamic.memory == fixed.memory
    rings = [each.throughput.parts_seconds["ring_attention"] for each in (fixed, dynamic)]
    assert rings[1] == pytest.approx(rings[0] / 2)
    assert dynamic.throughput.step_seconds < fixed.throughput.step_seconds
    assert packed("packed_dynamic", {1024: 32}).throughput.parts_seconds["ring_attention"] == 0.0


def test_a_package_run_for_real_has_the_scores_of_its_samples() -> None:
    torch = pytest.importorskip("torch")
    counting = pytest.importorskip("torch.utils.flop_counter").FlopCounterMode
    samples, width = [96, 160, 256], 64
    lengths = Lengths.read(samples)
    query, key, value = (torch.randn(1, 2, sum(samples), width) for _ in range(3))
    of_sample = torch.repeat_interleave(torch.arange(len(samples)), torch.tensor(samples))
    mask = (of_sample[:, None] == of_sample[None]) & torch.ones(sum(samples), sum(samples)).tril().bool()
    package = torch.nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
    ends = np.cumsum([0, *samples])
    parts = []
    with counting(display=False) as counter:
        for start, end in pairwise(ends):
            q, k, v = (each[:, :, start:end] for each in (query, key, value))
            above = torch.ones(end - start, end - start).triu(1).bool()
            scores = (q @ k.transpose(-1, -2) / width**0.5).masked_fill(above, -torch.inf)
            parts.append(torch.softmax(scores, dim=-1) @ v)
    assert torch.allclose(torch.cat(parts, dim=2), package, atol=1e-5)
    stated = 4 * 2 * width * sum(samples) * lengths.segments(1).attended
    assert counter.get_total_flops() == pytest.approx(stated, rel=0.01)


def test_padding_costs_time_and_no_tokens() -> None:
    one, four = (estimate(lengths=SPREAD, micro_batch_size=size, global_batch_size=64) for size in (1, 4))
    sorted_ = estimate(lengths=SPREAD, micro_batch_size=4, global_batch_size=64, batching="sorted")
    assert one.lengths
    assert four.lengths
    assert sorted_.lengths
    assert (one.lengths.padding, sorted_.lengths.padding) == pytest.approx((0.0, 0.0))
    assert 0.4 < four.lengths.padding < 0.7
    assert four.throughput.tokens_per_second_per_device < sorted_.throughput.tokens_per_second_per_device


def test_memory_is_of_the_fullest_micro_batch_of_the_share_of_steps() -> None:
    lengths = {100: 0.9, 1000: 0.099, 8000: 0.001}
    longest = estimate(lengths=lengths, global_batch_size=64)
    assert (longest.seq_length, longest.memory) == (8000, estimate(seq_length=8000, global_batch_size=64).memory)
    assert estimate(lengths=lengths, global_batch_size=64, survive=0.9).seq_length == 1000  # 0.999^64 is 0.938
    assert estimate(lengths=lengths, global_batch_size=64, cutoff=512).seq_length == 512


@pytest.mark.full_answer
def test_it_says_where_a_run_fails_and_how_often() -> None:
    found = estimate(lengths={500: 999, 100_000: 1}, tp=4, lora_rank=8).lengths
    assert found
    assert found.fits_to
    assert 500 < found.fits_to < 100_000
    assert found.failing_steps == pytest.approx(1 - 0.999**8)
    at = estimate(seq_length=found.fits_to, tp=4, lora_rank=8).memory
    over = estimate(seq_length=found.fits_to + 512, tp=4, lora_rank=8).memory
    assert at.need_bytes <= at.capacity_bytes * 1.001
    assert over.need_bytes > 0.97 * over.capacity_bytes


@pytest.mark.parametrize("ranks", [_Waiting(1, 1, 8), _Waiting(4, 1, 1), _Waiting(2, 6, 16), _Waiting(1, 40, 64)])
def test_waits_are_those_of_drawn_steps(ranks: _Waiting) -> None:
    lengths = Lengths.read(SPREAD)
    works, shares = work_of_micro_batch(lengths, 1, 0.25)
    drawn = np.random.default_rng(1).choice(
        works, p=shares, size=(2000, ranks.replicas, ranks.micro_batches, ranks.joined)
    )
    slowest = drawn.max(axis=3).mean(axis=2).max(axis=1).mean()
    assert expected_slowest(lengths, 0.25, 1, ranks) == pytest.approx(slowest, rel=0.03)


def test_scores_of_packages_vary_as_drawn_ones_do() -> None:
    lengths = Lengths.read("p50=900,p90=3k,max=8k,min=200")
    packed = replace(lengths, batching="packed", cutoff=65536)
    works, shares = work_of_micro_batch(packed, 1, 1.0)
    rng, sums = np.random.default_rng(2), []
    for _ in range(3000):
        tokens = rng.choice(lengths.tokens, p=np.array(lengths.weights) / sum(lengths.weights), size=400)
        tokens = tokens[np.cumsum(tokens) <= 65536].astype(float)
        sums.append(float(tokens @ tokens) / tokens.sum())
    deviation = float(np.sqrt((works - 1.0) ** 2 @ shares))
    assert deviation == pytest.approx(np.std(sums) / np.mean(sums), rel=0.1)


def test_more_replicas_wait_longer() -> None:
    few, many = (
        simulator.estimate(
            model="llama3.1-8b", hardware="h100-sxm-80g", nodes=nodes, tp=8, lengths=SPREAD, stack="default"
        )
        for nodes in (2, 16)
    )
    assert few.throughput.parts_seconds["length_waits"] > 0.0
    share = many.throughput.parts_seconds["length_waits"] / many.throughput.step_seconds
    assert share > few.throughput.parts_seconds["length_waits"] / few.throughput.step_seconds


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "l.txt: holds no lengths"),
        ("900\n0\n", "l.txt:2: '0' is no length: a whole number"),
        ("900\n12.5\n", "l.txt:2: '12.5' is no length"),
        ('{"length": 900}\n{"text": "a"}\n', "l.txt:2: "),
        ("900\n\n200000\n", "l.txt:3: 200000 tokens: llama3.1-8b has 131072 positions"),
        ("900,-1\n", "l.txt:1: 900,-1: '-1' is no count"),
        ("900,12\n800,0\n", "l.txt:2: 800,0: '0' is no count: a whole number from 1"),
        ("900,0.5\n", "l.txt:1: 900,0.5: '0.5' is no count"),
        ("1,000\n200\n", "l.txt:1: 1,000: write 1000; behind a comma stands a count"),
        ("12,050\n", "l.txt:1: 12,050: write 12050; behind"),
        ("abc\n200\n", "l.txt:1: 'abc' is no length"),
        ('{"length": 900, "count": 0}\n', "l.txt:1: '0' is no weight"),
    ],
)
def test_wrong_files_name_the_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, message: str) -> None:
    monkeypatch.chdir(tmp_path)
    Path("l.txt").write_text(text, encoding="utf-8")
    with pytest.raises(InputError) as error:
        estimate(lengths="l.txt")
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"lengths": SPREAD, "seq_length": 4096}, "lengths and seq_length 4096 exclude each other"),
        ({"lengths": "p50=4k,p90=3k,max=16k"}, "p90=3k is below p50=4k"),
        ({"lengths": "p50=900"}, "max is missing"),
        ({"lengths": "p50=900,q=3"}, "write percentiles"),
        ({"lengths": "p101=5"}, "lengths 'p101=5': write percentiles (min, p1 to p99.99, max)"),
        ({"lengths": "mean=900,max=16k"}, "lengths 'mean=900': write percentiles (min, p1"),
        ({"lengths": "absent.txt"}, "no such file"),
        ({"lengths": []}, "holds no lengths"),
        ({"lengths": SPREAD, "batching": "stacked"}, "batching 'stacked'"),
        ({"lengths": SPREAD, "survive": 1.5}, "survive 1.5"),
        ({"cutoff": 512}, "cutoff 512: is of lengths that differ"),
    ],
)
def test_wrong_lengths_are_one_line(inputs: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as error:
        estimate(**inputs)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_files_of_every_form_read_alike(tmp_path: Path) -> None:
    texts = {
        "a.txt": "512\n512\n900\n",
        "b.csv": "length,count\n512,2\n900,1\n",
        "c.jsonl": '{"length": 512, "count": 2}\n{"tokens": 900}\n',
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    first, *others = (Lengths.read(str(tmp_path / name)) for name in texts)
    assert all(each == first for each in (*others, Lengths.read([900, 512, 512]), Lengths.read({512: 2, 900: 1})))
    assert Lengths.read(first.to_dict()).tokens == first.tokens
    assert Lengths.read("P50=900,MAX=16K") == Lengths.read("p50=900,max=16k")


@pytest.mark.full_answer
def test_open_lengths_are_shown_with_the_range_that_is_priced() -> None:
    question = shlex.split("--model llama3.1-8b --hardware h100-sxm-80g --tp 8 --lengths max=16k --stack default")
    shown = " ".join(run("estimate", *question).stdout.split())
    interval = estimate(lengths="max=16k", global_batch_size=1024).throughput.interval_seconds
    assert interval
    assert f"({interval.low:.1f} to {interval.high:.1f}, from samples of one token to full ones)" in shown
    assert re.search(r"samples of one token give [0-9.]+ tokens/s \([0-9]{1,3}(,[0-9]{3})+ in a log", shown)
    assert "±" not in shown.partition("speed: ")[2].partition(" a step")[0]


def test_many_lengths_are_binned_within_a_thousandth() -> None:
    drawn = np.random.default_rng(3).integers(1, 60_000, size=30_000).tolist()
    lengths = Lengths.read(drawn)
    assert len(lengths.tokens) <= 1024
    assert lengths.longest == max(drawn)
    assert lengths.segments(1).mean == pytest.approx(np.mean(drawn), rel=1e-3)
    assert lengths.segments(1).attended == pytest.approx(np.square(drawn).mean() / np.mean(drawn), rel=1e-3)


def test_a_stored_answer_is_priced_again_and_written(tmp_path: Path) -> None:
    words = ("--model", "llama3.1-8b", "--hardware", "h100-sxm-80g", "--nodes", "1", "--tp", "4", "--pp", "2")
    answered = run(
        "estimate", *words, "--lengths", SPREAD, "--batching", "packed", "--cutoff", "8k", "--format", "json"
    )
    file = tmp_path / "answer.json"
    file.write_text(answered.stdout, encoding="utf-8")
    stored = json.loads(answered.stdout)
    assert stored["lengths"]["batching"] == "packed"
    assert stored["layout"]["seq_length"] == 8192
    again = json.loads(run("explain", str(file), "--format", "json").stdout)["estimate"]
    assert again["throughput"]["step_time_s"] == stored["throughput"]["step_time_s"]
    for name in ("lengths", "batching", "cutoff"):
        assert again["question"]["inputs"][name] == stored["question"]["inputs"][name]
    written = run("emit", str(file)).stdout
    assert "--seq-length 8192" in written.replace("\\\n", " ")
    assert "Memory is of 8192 tokens; lengths: packed, cut at 8192" in written


def test_a_data_set_is_counted_by_characters(tmp_path: Path) -> None:
    file = tmp_path / "data.jsonl"
    file.write_text('{"text": "abcdefgh"}\n{"text": [{"role": "user", "content": "abcd"}]}\n', encoding="utf-8")
    counted = run("lengths", str(file), "--chars-per-token", "4")
    assert counted.stdout == "length,count\n1,1\n2,1\n"
    assert "± 15 %" in counted.stderr
    assert "1: has no field 'body'; its fields: text" in run("lengths", str(file), "--field", "body").stderr


def test_only_the_longest_is_a_range() -> None:
    full = estimate(seq_length=8192)
    found = estimate(lengths="max=8k", batching="packed")
    assert found.throughput.step_seconds == full.throughput.step_seconds
    assert found.memory == full.memory
    assert found.lengths
    assert found.lengths.shortest_step_seconds
    assert found.lengths.shortest_step_seconds < full.throughput.step_seconds


MINDSPEED: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, str], float]] = {
    # Ascend/MindSpeed-LLM, docs/en/pytorch/features/README.md at c77308a1, and the scripts that its rows name.
    "qwen3-30b, 256k, packed": (
        {"model": "qwen3-30b-a3b", "hardware": "ascend-910c", "devices": 128, "tp": 2, "pp": 2, "cp": 16, "ep": 16},
        {"lengths": "max=256k", "batching": "packed", "global_batch_size": 32, "expert_tensor_parallel": 1},
        {"cp_communication": "all_to_all", "attention_mask": "none"},
        3774.914,
    ),
    "deepseek-v3, adapters, short samples": (
        {"model": "deepseek-v3", "hardware": "ascend-910b-64g-8", "devices": 64, "pp": 4, "ep": 16, "lora_rank": 8},
        {"lengths": "max=4k", "global_batch_size": 256, "stage_layers": (15, 15, 16, 15), "recompute": "full"},
        {},
        978.914,
    ),
}


@pytest.mark.parametrize("row", MINDSPEED)
def test_rows_without_lengths_lie_between_one_token_and_full(row: str) -> None:
    sizes, lengths, options, printed = MINDSPEED[row]
    fields = {"max_position_embeddings": 2**18} if "256k" in row else {}
    question = question_of({**sizes, **lengths, "options": options, "model_fields": fields})
    found = estimate_of(priceable(case_of(question)))
    speed, about = found.throughput, found.lengths
    assert about
    assert about.shortest_step_seconds
    assert about.shortest_tokens_per_second_per_device
    full = speed.tokens_per_second_per_device
    # A log may count samples as full, and on Atlas A3 a package of two dies as a device.
    counted = full * speed.step_seconds / about.shortest_step_seconds
    assert full < min(printed, printed / 2.0 if "910c" in str(sizes) else printed)
    assert printed < max(counted, about.shortest_tokens_per_second_per_device)


ALPACA = "min=29,p50=138,p90=317,p99=625,max=1028"
"""A logarithmic normal law of mean 170 and deviation 123: samples of alpaca-cleaned, which torchtune's recipe trains on
(170.1 ± 122.9 tokens, 29 to 1,028: modelscope/ms-swift 2.2, docs/source/LLM/Supported-models-datasets.md)."""
PUBLISHED = list(
    csv.DictReader(Path(__file__).with_name("published_lengths.csv").read_text(encoding="utf-8").splitlines())
)


@pytest.mark.parametrize("row", PUBLISHED, ids=[row["row"] for row in PUBLISHED])
def test_published_rows_with_lengths_are_met(row: dict[str, str]) -> None:
    question: dict[str, Any] = {"model": "llama3.2-3b", "hardware": "a100-sxm-80g", "devices": 1, "framework": "torch"}
    question |= {"stack": "torchtune", "micro_batch_size": 2, "global_batch_size": 2, "recompute": row["recompute"]}
    question |= {"options": dict(word.split("=") for word in row["options"].split(";")), "lengths": ALPACA}
    question |= {"batching": row["batching"], "cutoff": 4096 if row["batching"] == "packed" else None}
    found = simulator.estimate(**question)
    speed = found.throughput.tokens_per_second_per_device
    assert speed == pytest.approx(float(row["tokens_per_second"]), rel=0.17)
    if row["active_gib"]:  # of the baseline it depends on the longest sample, which is not stated
        assert found.memory.allocated_bytes / 2**30 == pytest.approx(float(row["active_gib"]), rel=0.05)


@pytest.mark.full_answer
@pytest.mark.parametrize("name", ["lengths.md", "images.md"])
def test_the_page_shows_lines_of_its_answer(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(DOCS.parent)
    command, lines = re.findall(r"```sh\n(simulate estimate .*?)```\n\n```text\n(.*?)```", page(name), re.DOTALL)[0]
    printed = run(*shlex.split(command.replace("\\\n", " "))[1:], env={"COLUMNS": "120"}).stdout
    assert set(lines.splitlines()) <= set(printed.splitlines())
