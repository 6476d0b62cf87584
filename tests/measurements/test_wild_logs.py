"""Logs as trainers in the wild write them: lines in each trainer's own form, with figures of this project's own."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from simulator.errors import InputError
from simulator.evidence.measurements.question import question
from simulator.evidence.measurements.rows import MeasuredRow
from simulator.recipes.logs import read_log

HARDWARE = "a100-sxm-80g"
DATED: dict[str, object] = {
    "bf16": False,
    "bias_gelu_fusion": True,
    "checkpoint_activations": True,
    "checkpoint_num_layers": 1,
    "deepspeed_activation_checkpointing": True,
    "embed_layernorm": True,
    "ffn_hidden_size": 16384,
    "fp16": True,
    "global_batch_size": 512,
    "glu_activation": None,
    "hidden_size": 4096,
    "make_vocab_size_divisible_by": 128,
    "max_position_embeddings": 2048,
    "micro_batch_size": 2,
    "num_attention_heads": 32,
    "num_layers": 30,
    "padded_vocab_size": 50688,
    "pipeline_model_parallel_size": 2,
    "position_embedding_type": "PositionEmbeddingType.absolute",
    "seq_length": 2048,
    "tensor_model_parallel_size": 4,
    "world_size": 64,
}
"""Arguments as Megatron-DeepSpeed prints them."""


def dump(arguments: Mapping[str, object], column: int = 48) -> str:
    """The arguments as Megatron prints them: a name as wide as the column has no dots."""
    lines = [f"  {name} {'.' * (column - len(name))} {value}" for name, value in arguments.items()]
    return "\n".join([" arguments ".center(58, "-"), *lines, " end of arguments ".center(58, "-")]) + "\n"


def steps(*seconds: float, batch: int = 512) -> str:
    """Iterations as Megatron-DeepSpeed prints them, by the last rank."""
    return "".join(
        f"[default7]: iteration {at:8d}/ 1000 | consumed samples: {at * batch:12d} | consumed tokens: {at:12d} | "
        f"elapsed time per iteration (s): {time:.2f} | learning rate: 1.0E-05 | global batch size: {batch:5d} | "
        "lm loss: 2.4E+00 | grad norm: 0.174 | samples per second: 20.4 | TFLOPs: 120.5 |\n"
        for at, time in enumerate(seconds, start=1)
    )


def read(folder: Path, text: str, **given: object) -> tuple[MeasuredRow, ...]:
    path = folder / "train.log"
    path.write_text(text, encoding="utf-8")
    return read_log(path, hardware=HARDWARE, **given)  # type: ignore[arg-type]  # cases


def refused(folder: Path, text: str, **given: object) -> str:
    with pytest.raises(InputError) as caught:
        read(folder, text, **given)
    return str(caught.value)


def test_megatron_deepspeed(tmp_path: Path) -> None:
    (row,) = read(tmp_path, dump(DATED) + steps(40.0, 31.0, 25.1, 25.3, 25.2))
    assert (row.devices, row.tensor_parallel, row.pipeline_parallel, row.micro_batch_size) == (64, 4, 2, 2)
    assert (row.recompute, row.recompute_method, row.recompute_layers) == ("full", "uniform", 1)
    assert (row.step_time_ms, row.precision) == (25200.0, "fp16")
    # Kernels and overlaps of later versions do not exist in this one.
    switches = dict(row.options)
    assert switches["flash_attention"] == switches["overlap_grad_reduce"] == "false"
    assert switches["expandable_segments"] == "false"


def test_a_gelu_gpt_is_no_llama(tmp_path: Path) -> None:
    (row,) = read(tmp_path, dump(DATED) + steps(25.0, 25.0, 25.0))
    model = question(row)[0].model
    assert (model.gated, model.activation, model.norm, model.architecture) == (False, "gelu", "layer_norm", "gpt2")
    assert (model.rotary, model.learned_positions, model.embedding_norm) == (False, 2048, True)
    assert (model.mlp_bias, model.tie_word_embeddings) == (True, True)
    # A shape that a shipped gated model has all the same is not that model.
    shape: dict[str, object] = {"num_layers": 32, "ffn_hidden_size": 11008, "padded_vocab_size": 32000}
    (row,) = read(tmp_path, dump(DATED | shape) + steps(25.0, 25.0, 25.0))
    assert not question(row)[0].model.gated
    (row,) = read(tmp_path, dump(DATED | shape | {"glu_activation": "swiglu"}) + steps(25.0, 25.0, 25.0))
    assert question(row)[0].model.gated


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"checkpoint_activations": False}, ("none", None, None)),
        ({"checkpoint_num_layers": 2}, ("full", "uniform", 2)),
        (
            {
                "checkpoint_activations": None,
                "activations_checkpoint_method": "block",
                "activations_checkpoint_num_layers": 3,
            },
            ("full", "block", 3),
        ),
    ],
)
def test_checkpointing_of_earlier_versions_is_full_recompute(
    tmp_path: Path, arguments: dict[str, object], expected: tuple[object, ...]
) -> None:
    (row,) = read(tmp_path, dump(DATED | arguments) + steps(25.0, 25.0, 25.0))
    assert (row.recompute, row.recompute_method, row.recompute_layers) == expected


def test_the_first_versions_name_sizes_otherwise(tmp_path: Path) -> None:
    renamed = {"micro_batch_size", "global_batch_size", "tensor_model_parallel_size", "pipeline_model_parallel_size"}
    arguments = {name: value for name, value in DATED.items() if name not in renamed}
    arguments |= {"batch_size": 8, "model_parallel_size": 4, "data_parallel_size": 16}
    iterations = "".join(
        f" iteration {at}/ 1000 | elapsed time per iteration (ms): 812.5 | learning rate 1E-04 |\n"
        for at in range(1, 6)
    )
    (row,) = read(tmp_path, dump(arguments, column=32) + iterations)
    assert (row.tensor_parallel, row.micro_batch_size, row.global_batch_size) == (4, 8, 128)
    # A name as wide as its column.
    assert row.recompute == "full"


def test_two_reports_on_one_line_are_two(tmp_path: Path) -> None:
    reports = (
        "[Rank 0] (after 1 iterations) memory (MB) | allocated: 20000.5 | max allocated: 41000.25 | "
        "reserved: 42000.0 | max reserved: 43000.0[Rank 4] (after 1 iterations) memory (MB) | allocated: 21000.0 | "
        "max allocated: 44000.75 | reserved: 45000.0 | max reserved: 46000.0 "
        "[2025-03-02 10:11:12] iteration        2/    100 | elapsed time per iteration (ms): 25400.0 |\n"
    )
    (row,) = read(tmp_path, dump(DATED) + steps(26.0) + reports + steps(25.1, 25.2, 25.3, 25.2, 25.2))
    assert (row.memory_mib, row.memory_reserved_mib) == (44000.75, 46000.0)
    assert "2 reporting ranks" in row.evidence


def test_deepspeed_timer_tells_the_memory(tmp_path: Path) -> None:
    timer = (
        "[2024-03-07 15:27:02,646] [INFO] [timer.py:260:stop] epoch=0/micro_step=199/global_step=199, "
        "RunningAvgSamplesPerSec=58.7, CurrSamplesPerSec=61.3, MemAllocated=6.01GB, MaxMemAllocated=19.5GB\n"
    )
    arguments: dict[str, object] = DATED | {"deepspeed": True, "zero_stage": "1.0"}
    (row,) = read(tmp_path, dump(arguments) + timer + steps(25.0, 25.0, 25.0))
    assert (row.memory_mib, row.memory_kind, row.zero_stage) == (19968.0, "allocated", 1)


def test_current_and_mean_on_one_line(tmp_path: Path) -> None:
    """Primus prints the step's figure and the mean so far, with a bar between them."""
    lines = "".join(
        f"[rank-7/8] iteration {at:8d}/ 20 | consumed samples: 64 | elapsed time per iteration (ms): {time}/735.1 | "
        "throughput per GPU (TFLOP/s/GPU): 1290.3/1162.8  | global batch size:   512 |\n"
        for at, time in enumerate((900.0, 800.0, 654.5, 655.5, 654.5), start=1)
    )
    (row,) = read(tmp_path, dump(DATED) + lines)
    assert row.step_time_ms == 654.5


def test_an_excerpt_asks_once_for_everything(tmp_path: Path) -> None:
    text = steps(26.0, 25.1, 25.2, 25.3)
    said = refused(tmp_path, text)
    assert said.count("does not say") == 1
    for name in ("model", "devices", "seq_length", "micro_batch_size", "tensor_parallel", "recompute"):
        assert name in said
    assert "global_batch_size" not in said
    given = {"model": "llama-2-7b", "devices": 64, "seq_length": 2048, "micro_batch_size": 1, "tensor_parallel": 2}
    (row,) = read(tmp_path, text, columns=given)
    assert (row.model, row.tensor_parallel, row.global_batch_size, row.step_time_ms) == ("llama-2-7b", 2, 512, 25250.0)


def test_what_is_fixed_holds_whatever_the_log_says(tmp_path: Path) -> None:
    text = dump(DATED) + steps(25.0, 25.0, 25.0)
    assert read(tmp_path, text, columns={"micro_batch_size": 4})[0].micro_batch_size == 2
    given = {"micro_batch_size": 4}
    assert read(tmp_path, text, columns=given, fixed=given)[0].micro_batch_size == 4


TITAN = """\
[rank0]:[titan] 2026-01-10 09:00:00,001 - root - INFO - Starting job: Llama 3 8B training
[rank0]:[titan] 2026-01-10 09:00:01,001 - root - INFO - Building device mesh with parallelism: pp=1, \
dp_replicate=1, dp_shard=4, cp=1, tp=2, ep=1, etp=1
[rank0]:[titan] 2026-01-10 09:00:02,001 - root - INFO - CUDA capacity: NVIDIA A100-SXM4-80GB with 79.25GiB memory
[rank0]:[titan] 2026-01-10 09:00:03,001 - root - INFO - Model llama3 8B size: 8,030,261,248 total parameters
[rank0]:[titan] 2026-01-10 09:00:04,001 - root - INFO - Applied full activation checkpointing to the model
[rank0]:[titan] 2026-01-10 09:00:05,001 - root - INFO - Trainer is initialized with local batch size 2, \
global batch size 16, gradient accumulation steps 2, sequence length 8192, total steps 1000 (warmup 200).
"""


def titan_step(at: int, tokens: str, memory: float = 61.2) -> str:
    return (
        f"[rank0]:[titan] 2026-01-10 09:01:00,001 - root - INFO - \x1b[31mstep: {at:2d}  \x1b[32mloss: 10.2542  "
        f"grad_norm:  1.7 \x1b[38;2;54;234;195mmemory: {memory:5.2f}GiB(77.2%)  \x1b[34mtps: {tokens}  "
        "tflops: 201.12  mfu: 64.46%\x1b[39m\n"
    )


def test_torchtitan(tmp_path: Path) -> None:
    text = TITAN + "".join(map(titan_step, (1, 10, 20, 30, 40), ("410", "3,310", "3,402", "3,400", "3,398")))
    (row,) = read(tmp_path, text)
    assert (row.model, row.framework, row.devices) == ("llama3-8b", "torch", 8)
    assert (row.tensor_parallel, row.zero_stage, row.micro_batch_size, row.global_batch_size) == (2, 3, 2, 16)
    assert (row.seq_length, row.recompute, row.precision) == (8192, "full", "bf16")
    assert (row.tokens_per_second_per_device, row.step_time_s) == (3400.0, None)
    assert (row.memory_gib, row.memory_kind) == (61.2, "reserved")
    said = refused(tmp_path, "".join(titan_step(at, "3,400") for at in range(1, 6)))
    assert "does not say model, devices, seq_length, micro_batch_size, global_batch_size" in said


HUGGING_FACE = """\
[INFO|configuration_utils.py:768] 2026-02-03 10:00:00,000 >> Model config LlamaConfig {
  "architectures": [
    "LlamaForCausalLM"
  ],
  "hidden_act": "silu",
  "hidden_size": 4096,
  "intermediate_size": 11008,
  "model_type": "llama",
  "num_attention_heads": 32,
  "num_hidden_layers": 32,
  "num_key_value_heads": 32,
  "tie_word_embeddings": false,
  "vocab_size": 32000
}

[INFO|trainer.py:2409] 2026-02-03 10:00:10,000 >> ***** Running training *****
[INFO|trainer.py:2410] 2026-02-03 10:00:10,000 >>   Num examples = 51,200
[INFO|trainer.py:2412] 2026-02-03 10:00:10,000 >>   Instantaneous batch size per device = 4
[INFO|trainer.py:2415] 2026-02-03 10:00:10,000 >>   Total train batch size (w. parallel, distributed & \
accumulation) = 64
[INFO|trainer.py:2416] 2026-02-03 10:00:10,000 >>   Gradient Accumulation steps = 2
[INFO|trainer.py:2417] 2026-02-03 10:00:10,000 >>   Total optimization steps = 100
"""
BARS = "".join(
    f"\r  {at}%|#         | {at}/100 [00:{at:02d}<03:57,  {time}s/it]"
    for at, time in enumerate((9, 7, 4.1, 4.0, 4.2), 1)
)
END = (
    "\r  50%|#####     | 4/8 [00:02<00:02,  0.51s/it]\n"
    "{'train_runtime': 500.0, 'train_samples_per_second': 12.8, 'train_steps_per_second': 0.2, 'train_loss': 1.9}\n"
)


def test_hugging_face_trainer(tmp_path: Path) -> None:
    assert "does not say seq_length (and tensor_parallel" in refused(tmp_path, HUGGING_FACE + BARS + END)
    (row,) = read(tmp_path, HUGGING_FACE + BARS + END, columns={"seq_length": 4096, "zero_stage": 3})
    assert (row.model, row.devices, row.micro_batch_size, row.global_batch_size) == ("llama-2-7b", 8, 4, 64)
    # Evaluation's bar has another total.
    assert (row.step_time_s, row.step_samples, row.zero_stage) == (4.1, 3, 3)
    assert "all data parallel" in row.evidence
    # Without bars the run's mean is left.
    (row,) = read(tmp_path, HUGGING_FACE + END[END.index("{") :], columns={"seq_length": 4096})
    assert row.step_time_s == 5.0


def test_nemo(tmp_path: Path) -> None:
    text = "".join(
        f"Training epoch 0, iteration {at}/99 | lr: 1.9e-06 | global_batch_size: 128 | global_step: {at} | "
        f"reduced_train_loss: 1.315 | train_step_timing in s: {time} | consumed_samples: {128 * at}\n"
        for at, time in enumerate((9.1, 5.2, 4.41, 4.4, 4.42))
    )
    assert "does not say model, devices, seq_length, micro_batch_size (and" in refused(tmp_path, text)
    given = {"model": "llama3.1-8b", "devices": 8, "seq_length": 8192, "micro_batch_size": 1}
    (row,) = read(tmp_path, text, columns=given)
    assert (row.global_batch_size, row.step_time_s, row.framework) == (128, 4.41, "megatron")
    bar = "Epoch 0: : 100%|####| {0}/100 [10:48<00:00, reduced_train_loss=0.01, global_step={0}.00, "
    bar += "consumed_samples=25600.0, train_step_timing in s=3.130]\r"
    (row,) = read(tmp_path, "".join(bar.format(at) for at in (1, 2, 3)), columns=given | {"global_batch_size": 256})
    assert row.step_time_s == 3.13


def test_mlperf(tmp_path: Path) -> None:
    event = '0: :::MLLOG {"namespace": "", "time_ms": 1713455596653, "event_type": "POINT_IN_TIME", "key": "%s", '
    facts = (event % "global_batch_size") + '"value": 64, "metadata": {"file": "train.py", "lineno": 12}}\n'
    facts += (event % "max_sequence_length") + '"value": 8192, "metadata": {"file": "train.py", "lineno": 13}}\n'
    times = "".join(
        (event % "tracked_stats") + f'"value": {{"train_step_timing in s": {time}}}, "metadata": {{"step": {at}}}}}\n'
        for at, time in enumerate((5.0, 4.0, 2.11, 2.12, 2.13), start=1)
    )
    given = {"model": "llama2-70b", "devices": 8, "micro_batch_size": 1, "tensor_parallel": 4, "lora_rank": 16}
    (row,) = read(tmp_path, facts + times, columns=given | {"model": "llama-2-70b"})
    assert (row.global_batch_size, row.seq_length, row.step_time_s, row.lora_rank) == (64, 8192, 2.12, 16)
    lines = "".join(f"0: Step {at} train_step_timing 1.932 timestamp: 1713522620986.0\n" for at in range(1, 5))
    (row,) = read(tmp_path, facts + lines, columns=given | {"model": "llama-2-70b"})
    assert row.step_time_s == 1.932


def test_mindspeed(tmp_path: Path) -> None:
    """MindSpeed-LLM prints Megatron's lines, with arguments and memory of its own beside them."""
    arguments = {name: value for name, value in DATED.items() if "gelu" not in name and "checkpoint" not in name}
    arguments |= {
        "swiglu": True,
        "normalization": "RMSNorm",
        "position_embedding_type": "rope",
        "transformer_impl": "local",
        "use_flash_attn": True,
        "use_fused_rmsnorm": True,
        "ffn_hidden_size": 11008,
        "num_layers": 8,
        "padded_vocab_size": 32000,
        "untie_embeddings_and_output_weights": True,
        "recompute_granularity": None,
        "use_distributed_optimizer": True,
        "add_bias_linear": False,
        "embed_layernorm": False,
    }
    iterations = "".join(
        f" [2026-03-01 12:00:0{at}] iteration {at:8d}/    2000 | consumed samples: 512 | "
        f"elapsed time per iteration (ms): {time} | throughput per GPU (TFLOP/s/GPU): 131.7 | "
        "lm loss: 1.0E+01 | loss scale: 1.0 | grad norm: 0.8 |\n"
        for at, time in enumerate((79489.9, 11182.0, 10883.5, 10880.1, 10885.3), start=1)
    )
    report = (
        "[Rank 0] (after 1 iterations) memory (MB) | allocated: 26222.7 | max allocated: 53359.5 | reserved: 56802.0 | "
        "max reserved: 56802.0\n"
    )
    (row,) = read(tmp_path, dump(arguments) + report + iterations)
    assert (row.model, row.num_layers, row.zero_stage) == ("llama-2-7b", 8, 1)
    assert (row.step_time_ms, row.memory_mib, row.recompute) == (10883.5, 53359.5, "none")
    assert "flash_attention" not in dict(row.options)


def test_paddle_excerpt(tmp_path: Path) -> None:
    text = "".join(
        f"[2026-04-01 10:00:0{at},000] [    INFO] - loss: 9.1, learning_rate: 1e-05, global_step: {at}, "
        "current_memory_allocated: 30.1, max_memory_allocated: 60.5, interval_runtime: 4.25, "
        "interval_samples_per_second: 3.8, interval_steps_per_second: 0.2353\n"
        for at in range(1, 6)
    )
    assert "does not say model, devices, seq_length, micro_batch_size, global_batch_size" in refused(tmp_path, text)
    given = {"model": "llama-2-7b", "devices": 8, "seq_length": 4096, "micro_batch_size": 1, "global_batch_size": 16}
    (row,) = read(tmp_path, text, columns=given)
    assert (row.step_time_ms, row.memory_mib, row.framework) == (4250, 61952, "paddle")
