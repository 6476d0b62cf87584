import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from simulator.errors import InputError
from simulator.evidence.measurements.question import figures_devices, measured_tflops_per_device, question
from simulator.evidence.measurements.rows import MeasuredRow, read_rows, write_rows
from simulator.recipes.logs import read_log

DATA = Path(__file__).parent / "data"
LOGS = sorted(path.name for path in DATA.glob("*.log"))
HARDWARE = "h100-sxm-80g"


def only(name: str, **choices: Any) -> MeasuredRow:
    (row,) = read_log(DATA / name, hardware=HARDWARE, **choices)
    return row


def changed(tmp_path: Path, name: str, old: str, new: str, count: int = 1) -> Path:
    text = (DATA / name).read_text(encoding="utf-8")
    assert old in text
    path = tmp_path / name
    path.write_text(text.replace(old, new, count), encoding="utf-8")
    return path


def without(tmp_path: Path, name: str, pattern: str) -> Path:
    lines = (DATA / name).read_text(encoding="utf-8").splitlines()
    kept = [line for line in lines if not re.search(pattern, line)]
    assert len(kept) < len(lines)
    path = tmp_path / name
    path.write_text("\n".join(kept) + "\n", encoding="utf-8")
    return path


def refusal(path: Path, **choices: Any) -> str:
    with pytest.raises(InputError) as caught:
        read_log(path, hardware=HARDWARE, **choices)
    return str(caught.value).removeprefix(str(path))


def test_megatron_log() -> None:
    row = only("megatron-8b.log")
    assert (row.model, row.num_layers, row.devices, row.precision) == ("llama3-8b", None, 32, "bf16")
    assert (row.tensor_parallel, row.pipeline_parallel, row.zero_stage) == (1, 2, 1)
    # Iterations 3 to 10 of the log.
    assert row.step_time_ms == 30271.75
    assert row.step_time_spread is not None
    assert (row.step_time_spread.samples, row.step_time_spread.minimum, row.step_time_spread.maximum) == (
        8,
        30.2448,
        30.3017,
    )
    assert row.tflops_per_device == pytest.approx(501.5, abs=0.2)
    assert (row.memory_mib, row.memory_reserved_mib, row.memory_kind) == (60120.294921875, 62006.0, "allocated")
    assert "the first 2 dropped as warm-up" in row.evidence
    assert "Same shape: llama3.1-8b." in row.evidence
    assert figures_devices(row) == pytest.approx(32, rel=1e-3)


def test_warmup_is_the_callers() -> None:
    assert only("megatron-8b.log", warmup=5).step_samples == 5
    # The memory report after iteration 2 keeps its own.
    assert only("megatron-8b.log", warmup=0).step_samples == 8
    assert only("megatron-cut-iteration.log", warmup=0).step_samples == 5
    assert "none dropped" in only("megatron-cut-iteration.log", warmup=0).evidence
    assert "all within warm-up" in refusal(DATA / "megatron-8b.log", warmup=10)
    assert "must not be negative" in refusal(DATA / "megatron-8b.log", warmup=-1)


def test_interleaved_megatron_log() -> None:
    row = only("megatron-interleaved.log", options={"expandable_segments": "false"})
    assert (row.model, row.precision, row.virtual_stages, row.recompute) == ("qwen2.5-14b", "fp8", 4, "selective")
    told = ("overlap_grad_reduce", "overlap_param_gather", "fused_cross_entropy", "expandable_segments")
    assert [dict(row.options)[name] for name in told] == ["true", "true", "true", "false"]
    assert row.step_samples == 6
    assert row.memory_mib == 56019.5
    assert "4 reporting ranks" in row.evidence
    assert "The device showed 64017 MiB." in row.evidence
    # A version that counts causal attention: its TFLOP/s are not this table's.
    assert row.tflops_per_device is None
    assert "530.2 TFLOP/s" in row.evidence
    assert measured_tflops_per_device(row) == pytest.approx(586.5, abs=0.1)


def test_old_megatron_log() -> None:
    row = only("megatron-old.log")
    assert (row.model, row.precision, row.zero_stage, row.recompute) == ("llama-2-7b", "fp16", 0, "full")
    assert (row.tflops_per_device, row.memory_kind) == (None, None)
    assert row.step_time_ms == 31050.0


def test_seconds_are_read_as_seconds(tmp_path: Path) -> None:
    path = changed(tmp_path, "megatron-old.log", "per iteration (ms): 310", "per iteration (s): 310", count=99)
    assert read_log(path, hardware=HARDWARE)[0].step_time_ms == 31050000.0


def test_a_run_out_of_memory_is_a_row() -> None:
    failed, ran = read_log(DATA / "megatron-out-of-memory.log", hardware=HARDWARE)
    assert (failed.outcome, failed.step_seconds, failed.pipeline_parallel, failed.row) == ("oom", None, 1, 1)
    assert failed.error.startswith("torch.OutOfMemoryError: CUDA out of memory. Tried")
    assert (ran.outcome, ran.step_samples, ran.pipeline_parallel, ran.row) == ("ok", 4, 2, 2)


def test_paddlenlp_log() -> None:
    row = only("paddlenlp-13b.log")
    assert (row.model, row.framework, row.zero_stage, row.devices) == ("llama-13b", "paddle", 2, 8)
    assert (row.seq_length, row.global_batch_size, row.micro_batch_size) == (4096, 64, 1)
    assert (row.step_time_ms, row.step_samples) == (16638.95, 6)
    assert row.tokens_per_second_per_device == pytest.approx(1969.355)
    assert (row.memory_mib, row.memory_reserved_mib, row.memory_kind) == (64276, 67860, "allocated")
    assert figures_devices(row) == pytest.approx(8, rel=1e-4)


def test_paddleformers_log() -> None:
    row = only("paddleformers-7b-cut.log")
    assert (row.model, row.num_layers, row.lora_rank, row.offload) == ("qwen2.5-7b", 14, 16, "optimizer_tensorwise")
    assert (row.recompute, row.virtual_stages, row.zero_stage) == ("full", 2, 0)
    assert row.options == (("gradient_dtype", "fp32"),)
    # Five steps an interval.
    assert (row.step_time_ms, row.step_samples) == (12200, 7)


def test_other_spellings_of_paddle_memory(tmp_path: Path) -> None:
    path = changed(tmp_path, "paddlenlp-13b.log", "max_memory_allocated", "max_mem_allocated_gb", count=99)
    assert read_log(path, hardware=HARDWARE)[0].memory_mib == 64276
    path = changed(
        tmp_path, "paddlenlp-13b.log", "max_memory_allocated: 62.76953125", "gpu_max_memory_allocated: 64276", 99
    )
    text = path.read_text(encoding="utf-8").replace("max_memory_allocated: 60.5", "gpu_max_memory_allocated: 61952")
    path.write_text(text, encoding="utf-8")
    assert read_log(path, hardware=HARDWARE)[0].memory_mib == 64276


def test_a_batch_that_contradicts_the_speed_is_said(tmp_path: Path) -> None:
    path = changed(
        tmp_path, "paddlenlp-13b.log", "gradient_accumulation_steps   : 16", "gradient_accumulation_steps   : 8"
    )
    assert "imply 64 sequences a step where its configuration gives 32" in read_log(path, hardware=HARDWARE)[0].evidence


def test_paddle_out_of_memory() -> None:
    row = only("paddlenlp-out-of-memory.log")
    assert (row.outcome, row.model) == ("oom", "llama3-8b")
    assert row.error.startswith("Out of memory error on GPU 0.")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("megatron-cut-arguments.log", ":1: arguments without an end; expected '--- end of arguments ---'"),
        ("paddlenlp-no-steps.log", ":2: no step follows this configuration; expected lines like"),
        ("other.log", ":1: the log does not say model, devices, seq_length, micro_batch_size, global_batch_size"),
    ],
)
def test_an_unreadable_log_names_the_line(name: str, message: str) -> None:
    assert refusal(DATA / name).startswith(message)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("elapsed time per iteration (ms): 30301.7", "elapsed", ":68: iteration without its time; expected 'elapsed"),
        ("(ms): 30301.7", "(ms): fast", ":68: elapsed time per iteration (ms) is 'fast'; expected a number above zero"),
        ("max allocated: 60120.294921875", "max allocated: much", ":65: max allocated is 'much'; expected a number"),
        (". 4096\n", ". wide\n", ":20: hidden_size: 'wide' given; must be a whole number"),
        ("bf16 ............................................ True", "bf15 .. True", ":2: arguments name neither bf16"),
    ],
)
def test_a_wrong_line_of_a_megatron_log_is_named(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert refusal(changed(tmp_path, "megatron-8b.log", old, new)).startswith(message)


def test_an_unknown_shape_is_a_spec_of_its_own(tmp_path: Path) -> None:
    path = changed(tmp_path, "megatron-8b.log", "_size ................................. 14336", "_size ... 14000")
    (row,) = read_log(path, hardware=HARDWARE)
    assert row.model.startswith("{name: logged-32x4096, architecture: llama, num_hidden_layers: 32, hidden_size: 4096")
    assert "stands in the row as a spec of its own" in row.evidence
    assert question(row)[0].model.intermediate_size == 14000
    write_rows(tmp_path / "rows.csv", [row])
    assert read_rows(tmp_path / "rows.csv") == (row,)


def test_the_callers_model_must_have_the_shape() -> None:
    assert only("megatron-8b.log", model="llama3.1-8b").model == "llama3.1-8b"
    message = refusal(DATA / "megatron-8b.log", model="qwen2.5-14b")
    assert message == ":2: the log's model is not qwen2.5-14b: hidden_size 4096, not 5120"


def test_missing_arguments_are_named(tmp_path: Path) -> None:
    path = without(tmp_path, "megatron-8b.log", r" world_size \.")
    # The data-parallel size tells as much.
    assert read_log(path, hardware=HARDWARE)[0].devices == 32
    path = without(tmp_path, "megatron-8b.log", r" (world_size|data_parallel_size|seq_length) \.")
    assert refusal(path).startswith(":2: the log does not say devices, seq_length; give each with --set NAME=VALUE")
    given = {"devices": 32, "seq_length": 8192}
    assert read_log(path, hardware=HARDWARE, columns=given) == (only("megatron-8b.log"),)
    path = without(tmp_path, "megatron-8b.log", r" arguments -|\.\.\.\. |end of arguments")
    said = refusal(path)
    assert "does not say model, devices, seq_length, micro_batch_size (and tensor_parallel, pipeline_parallel" in said
    path = without(tmp_path, "megatron-8b.log", r"\] iteration ")
    assert "no iteration follows these arguments" in refusal(path)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("interval_runtime: 16.638,", "", ":39: step without its time; expected 'interval_runtime: 1.0'"),
        ("interval_runtime: 16.638,", "interval_runtime: x,", ":39: interval_runtime is 'x'; expected a number"),
        ("global_step: 3", "global_step: 1", ":39: global_step 1 after 2; expected steps in order"),
        ("facebook/llama-13b", "facebook/opt-350m", ":2: the log does not say model; give each"),
        (
            "bf16                          : True\n",
            "bf16_full : True\n",
            ":2: configuration names neither bf16 nor fp16",
        ),
        (
            "world_size                    : 8",
            "world_size                    : 5",
            ":2: world_size 5 is not a multiple",
        ),
    ],
)
def test_a_wrong_line_of_a_paddle_log_is_named(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert refusal(changed(tmp_path, "paddlenlp-13b.log", old, new)).startswith(message)


def test_a_broken_model_configuration_is_named(tmp_path: Path) -> None:
    path = changed(tmp_path, "paddleformers-7b-cut.log", '"num_hidden_layers": 14,', '"num_hidden_layers": 14')
    assert "the model's configuration is not JSON" in refusal(path)
    path = changed(tmp_path, "paddleformers-7b-cut.log", '"num_hidden_layers": 14,', '"num_hidden_layers": "x",')
    assert "num_hidden_layers is x; expected a whole number" in refusal(path)
    path = changed(tmp_path, "paddleformers-7b-cut.log", '"num_hidden_layers": 14,', "")
    assert "the model's configuration has no num_hidden_layers" in refusal(path)


def test_the_callers_model_serves_where_the_name_does_not(tmp_path: Path) -> None:
    path = changed(tmp_path, "paddlenlp-13b.log", "facebook/llama-13b", "my/own")
    assert read_log(path, hardware=HARDWARE, model="llama-2-13b")[0].model == "llama-2-13b"


def test_rank_prefixes_and_colours_do_not_matter(tmp_path: Path) -> None:
    lines = (DATA / "megatron-8b.log").read_text(encoding="utf-8").splitlines()
    path = tmp_path / "megatron-8b.log"
    for prefix in ("[default0]:[rank0]:", "0: ", "\x1b[32m[rank0]: "):
        path.write_text("\n".join(prefix + line for line in lines), encoding="utf-8")
        assert read_log(path, hardware=HARDWARE) == (only("megatron-8b.log"),)


def test_a_line_that_several_ranks_print_counts_once(tmp_path: Path) -> None:
    lines = (DATA / "megatron-8b.log").read_text(encoding="utf-8").splitlines()
    path = tmp_path / "megatron-8b.log"
    path.write_text("\n".join(x for line in lines for x in [line] * (1 + (" iteration " in line))), encoding="utf-8")
    assert read_log(path, hardware=HARDWARE)[0].step_samples == 8


def test_rows_of_logs_are_rows_of_the_schema(tmp_path: Path) -> None:
    for name in LOGS:
        try:
            rows = read_log(DATA / name, hardware=HARDWARE)
        except InputError:
            continue
        write_rows(tmp_path / "rows.csv", rows)
        assert read_rows(tmp_path / "rows.csv") == rows
        for row in rows:
            assert question(row)[1].devices == row.devices


def test_files_that_are_no_logs(tmp_path: Path) -> None:
    assert refusal(tmp_path / "none.log") == ": no such file"
    empty = tmp_path / "empty.log"
    empty.touch()
    assert refusal(empty).startswith(":1: no training log")
    binary = tmp_path / "binary.log"
    binary.write_bytes(bytes(range(256)) * 1000)
    assert "no training log" in refusal(binary)


def test_hardware_is_checked() -> None:
    with pytest.raises(InputError, match="unknown hardware 'h1000'"):
        read_log(DATA / "megatron-8b.log", hardware="h1000")


def read_or_refuse(path: Path) -> None:
    try:
        rows = read_log(path, hardware=HARDWARE)
    except InputError:
        return
    write_rows(path.with_suffix(".csv"), rows)
    assert read_rows(path.with_suffix(".csv")) == rows


FUZZ = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


@FUZZ
@given(st.sampled_from(LOGS), st.data())
def test_only_input_errors_escape_damaged_logs(tmp_path: Path, name: str, data: st.DataObject) -> None:
    lines = (DATA / name).read_bytes().splitlines()
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(lines) - 1))
        line = lines[at]
        start = data.draw(st.integers(0, len(line)))
        kind = data.draw(st.sampled_from(["cut", "insert", "drop", "swap", "number"]))
        if kind == "cut":
            lines[at] = line[:start]
        elif kind == "insert":
            lines[at] = line[:start] + data.draw(st.binary(max_size=8)) + line[start:]
        elif kind == "drop" and len(lines) > 1:
            del lines[at]
        elif kind == "swap":
            lines[at], lines[start % len(lines)] = lines[start % len(lines)], line
        else:
            value = data.draw(st.sampled_from([b"0", b"-1", b"9" * 20, b"1e400", b"nan", b"", b"4294967296"]))
            lines[at] = re.sub(rb"[0-9.]+(?=\D*$)", value, line)
    path = tmp_path / "log.log"
    path.write_bytes(b"\n".join(lines))
    read_or_refuse(path)


@FUZZ
@given(st.binary(max_size=300))
def test_only_input_errors_escape_bytes(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "log.log"
    path.write_bytes(data)
    read_or_refuse(path)


@FUZZ
@given(st.sampled_from(LOGS), st.integers(0, 4000))
def test_only_input_errors_escape_truncated_logs(tmp_path: Path, name: str, length: int) -> None:
    path = tmp_path / "log.log"
    path.write_bytes((DATA / name).read_bytes()[:length])
    read_or_refuse(path)


def argument(name: str, value: object) -> str:
    return f"  {name} {'.' * (48 - len(name))} {value}"


@pytest.mark.parametrize(
    ("arguments", "columns"),
    [
        ({"cpu_offloading": True}, {"offload": "activations"}),
        ({"optimizer_cpu_offload": True}, {"offload": "optimizer_tensorwise"}),
        ({"use_torch_fsdp2": True}, {"zero_stage": 3}),
        ({"use_custom_fsdp": True, "data_parallel_sharding_strategy": "optim"}, {"zero_stage": 1}),
        ({"decoder_first_pipeline_num_layers": 14}, {"stage_layers": (14, 18)}),
        ({"decoder_last_pipeline_num_layers": 15}, {"stage_layers": (17, 15)}),
        ({"num_layers_per_virtual_pipeline_stage": 4}, {"virtual_stages": 4}),
        (
            {"recompute_granularity": "full", "recompute_method": "block", "recompute_num_layers": 3},
            {"recompute": "full", "recompute_method": "block", "recompute_layers": 3},
        ),
        (
            {"recompute_granularity": "full", "recompute_method": "block", "recompute_num_layers": 0},
            {"recompute": "none"},
        ),
        ({"overlap_grad_reduce": False}, {"options": (("overlap_grad_reduce", "false"),)}),
        ({"overlap_grad_reduce": True}, {"options": (("overlap_grad_reduce", "true"),)}),
        ({"grad_reduce_in_bf16": True}, {"options": (("gradient_dtype", "bf16"),)}),
        ({"cp_comm_type": "['a2a']", "context_parallel_size": 2}, {"options": (("cp_communication", "all_to_all"),)}),
        ({"transformer_impl": "local"}, {"options": (("flash_attention", "false"),)}),
        ({"num_layers": 12}, {"num_layers": 12, "model": "llama3-8b"}),
    ],
)
def test_arguments_become_columns(tmp_path: Path, arguments: dict[str, Any], columns: dict[str, Any]) -> None:
    lines = (DATA / "megatron-8b.log").read_text(encoding="utf-8").splitlines()
    given = [line for line in lines if not any(f"  {name} ." in line for name in arguments)]
    given[2:2] = [argument(name, value) for name, value in arguments.items()]
    path = tmp_path / "megatron-8b.log"
    path.write_text("\n".join(given), encoding="utf-8")
    (row,) = read_log(path, hardware=HARDWARE)
    found = {name: getattr(row, name) for name in columns}
    # Every switch that a log shows is told, whatever the stack.
    assert set(columns.pop("options", ())) <= set(found.pop("options", ()))
    assert found == columns


def test_experts_become_columns(tmp_path: Path) -> None:
    arguments = {
        "num_experts": 8,
        "padded_vocab_size": 32000,
        "expert_model_parallel_size": 2,
        "tensor_model_parallel_size": 2,
    }
    lines = (DATA / "megatron-8b.log").read_text(encoding="utf-8").splitlines()
    given = [line for line in lines if not any(f"  {name} ." in line for name in arguments)]
    given[2:2] = [argument(name, value) for name, value in arguments.items()]
    path = tmp_path / "experts.log"
    path.write_text("\n".join(given), encoding="utf-8")
    (row,) = read_log(path, hardware=HARDWARE)
    assert (row.model, row.expert_parallel, row.expert_tensor_parallel) == ("mixtral-8x7b-v0.1", 2, 2)
    path.write_text("\n".join(x.replace("32000", "64000") for x in given), encoding="utf-8")
    (row,) = read_log(path, hardware=HARDWARE)
    assert "num_experts: 8, num_experts_per_tok: 2, moe_intermediate_size: 14336" in row.model
