"""nanotron's configuration files, by the rules of its own sources (2411b02)."""

from pathlib import Path

import pytest

from simulator.answers.gates import Gates
from simulator.question.question import question_of
from simulator.recipes.check.judge import check_files
from simulator.recipes.check.verdict import Checked

PLAIN = """
general: {project: a, run: b, seed: 1}
model:
  dtype: bfloat16
  make_vocab_size_divisible_by: 1
  model_config: {hidden_size: 1024, intermediate_size: 4096, num_attention_heads: 8, num_hidden_layers: 10,
    num_key_value_heads: 4, tie_word_embeddings: true, vocab_size: 32001, max_position_embeddings: 2048}
optimizer: {accumulate_grad_in_fp32: true, zero_stage: 1, optimizer_factory: {name: adamW}}
parallelism: {dp: 4, tp: 2, pp: 1, tp_mode: REDUCE_SCATTER, tp_linear_async_communication: true}
tokens: {micro_batch_size: 2, sequence_length: 2048, batch_accumulation_per_replica: 3}
"""


def judged(text: str, folder: Path) -> Checked:
    (folder / "train.yaml").write_text(text, encoding="utf-8")
    asked = question_of({"hardware": "h100-sxm-80g"})
    (result,) = check_files([str(folder / "train.yaml")], asked, Gates(), root=folder)
    return result


def test_a_plain_file_states_everything(tmp_path: Path) -> None:
    result = judged(PLAIN, tmp_path)
    assert (result.outcome, result.dialect) == ("fits", "nanotron-yaml"), result.reasons
    assert result.case is not None
    scenario, layout = result.case.scenario, result.case.layout
    assert (scenario.devices, scenario.global_batch_size, result.case.model.vocab_size) == (8, 2 * 3 * 4, 32002)
    assert (layout.data_parallel, layout.zero_stage, layout.sequence_parallel) == (4, 1, True)
    # Buckets of 16 bits over two ranks: ten layers of 15 squares of the width and two norms, the table, the last norm.
    assert result.case.recipe.unpriced_bytes == 10 * (15 * 1024**2 + 2 * 1024) + 32002 * 1024 + 1024


def test_gradients_of_16_bits_leave_no_master_copy(tmp_path: Path) -> None:
    result = judged(PLAIN.replace("accumulate_grad_in_fp32: true", "accumulate_grad_in_fp32: false"), tmp_path)
    assert result.case is not None
    assert result.case.question.options["master_weights"] == "false"


def test_stages_are_cut_by_cost(tmp_path: Path) -> None:
    result = judged(PLAIN.replace("dp: 4, tp: 2, pp: 1", "dp: 4, tp: 1, pp: 2"), tmp_path)
    assert result.case is not None
    # A layer costs 16 squares of the width, the output layer 31.25: of 191.25 the sixth layer passes one half.
    assert result.case.layout.stage_layers == (6, 4)
    refused = judged(PLAIN.replace("tp: 2, pp: 1", "tp: 1, pp: 12"), tmp_path)
    assert "leave a stage of 12 empty" in " ".join(refused.reasons)


@pytest.mark.parametrize("config", ["/data/repo/conf/train.yaml", "conf/train.yaml", "${ROOT}/conf/train.yaml"])
def test_a_launch_names_its_file(config: str, tmp_path: Path) -> None:
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "train.yaml").write_text(PLAIN, encoding="utf-8")
    script = tmp_path / "run.sh"
    script.write_text(f"torchrun --nproc_per_node=8 run_train.py --config-file {config}\n", encoding="utf-8")
    (result,) = check_files([str(script)], question_of({"hardware": "h100-sxm-80g"}), Gates(), root=tmp_path)
    assert result.outcome == ("cannot_tell" if "$" in config else "fits"), result.reasons


@pytest.mark.parametrize(
    ("tp", "again", "outcome"), [(2, "true", "fits"), (2, "false", "not_modelled"), (1, "false", "fits")]
)
def test_gathered_inputs_that_are_kept_are_not_priced(tp: int, again: str, outcome: str, tmp_path: Path) -> None:
    text = PLAIN.replace("dp: 4, tp: 2,", f"dp: 4, tp: {tp}, tp_recompute_allgather: {again},")
    assert judged(text, tmp_path).outcome == outcome
