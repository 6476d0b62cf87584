"""The output layer and the loss: gathered logits, labelled tokens."""

import pytest

from simulator.cost.derived import Pricing
from simulator.cost.memory.loss import deferred_head_bytes, head_input_bytes, labelled_tokens, loss_bytes
from simulator.cost.operations.sums import micro_batches
from simulator.cost.timing.products import forward_flops_per_token
from tests.scenario.cases import ROUND, block, only, priced, pricing, scenario_of, small_dense

T, V = 64, 1000
FUSED = {"fused_cross_entropy": "true"}


def test_gathered_logits_are_whole_on_every_rank() -> None:
    fields = {"tensor_parallel": 2, "micro_batch_size": 2}
    sizes = []
    for word in ("true", "false"):
        options = FUSED | {"vocabulary_parallel_loss": word}
        scenario = scenario_of(small_dense(), profile="paddle", seq_length=32, options=options)
        sizes.append(only(loss_bytes(pricing(scenario, **fields))))
    assert sizes == [10 * T * V / 2, 10 * T * V]


def test_chunks_of_gathered_logits() -> None:
    options = FUSED | {"vocabulary_parallel_loss": "false", "cross_entropy_chunk_tokens": "16"}
    scenario = scenario_of(small_dense(), profile="paddle", seq_length=32, options=options)
    # 16 tokens of whole logits, the hidden gradient, an fp32 gradient of half the weight.
    expected = 10 * 16 * V + 2 * T * 64 + 4 * V / 2 * 64
    assert only(loss_bytes(pricing(scenario, tensor_parallel=2, micro_batch_size=2))) == expected


def test_gathering_logits_takes_time() -> None:
    found = []
    for word in ("true", "false"):
        options = FUSED | {"vocabulary_parallel_loss": word, "tp_comm_overlap": "false"}
        scenario = scenario_of("llama3.1-8b", options=options, coefficients=ROUND, global_batch_size=4)
        answer = priced(scenario, tensor_parallel=2, sequence_parallel=True)
        found.append({k: only(v) for k, v in answer.step.parts(answer.pricing).items()})
    link = scenario.hardware.links[0]
    gather = 2 * 8192 * 128256 / 2 / (link.bandwidth_bytes_per_second * 0.75) + link.latency_seconds
    assert found[1]["tensor_parallel"] - found[0]["tensor_parallel"] == pytest.approx(gather)
    # Eight bytes a logit in either pass, of twice the logits.
    passes = 2 * 8 * 8192 * 128256 / 2 / 1675e9
    assert found[1]["vocabulary"] - found[0]["vocabulary"] == pytest.approx(passes)


def test_tokens_without_a_label_skip_the_output_layer() -> None:
    options = FUSED | {"labelled_token_fraction": "0.25"}
    scenario = scenario_of(small_dense(), profile="paddle", seq_length=32, options=options)
    here = block(scenario, micro_batch_size=2)
    assert only(loss_bytes(Pricing(scenario, here))) == 10 * T / 4 * V
    # The norm keeps all tokens, its output only those that go on.
    assert only(head_input_bytes(Pricing(scenario, here))) == 6 * T * 64 + 4 * T + 2 * T / 4 * 64
    assert only(labelled_tokens(Pricing(scenario, here))) == T / 4
    whole = scenario_of(small_dense(), profile="paddle", seq_length=32, options=FUSED)
    assert forward_flops_per_token(whole) - forward_flops_per_token(scenario) == 2 * 64 * V * 0.75


@pytest.mark.parametrize(
    ("limit", "pipeline", "waiting"), [("0", 2, 0), ("3", 2, 3), ("3", 1, 0), ("2147483648", 2, 8)]
)
def test_gradients_of_the_output_layer_that_wait(limit: str, pipeline: int, waiting: int) -> None:
    """Their input, a part of the sequence, and the output's gradient in 16 bits, of at most as many as there are."""
    options = FUSED | {"deferred_head_gradients": limit}
    scenario = scenario_of(small_dense(), seq_length=32, options=options, devices=4 * pipeline, global_batch_size=32)
    fields = {"tensor_parallel": 2, "micro_batch_size": 2, "pipeline_parallel": pipeline, "sequence_parallel": True}
    here = block(scenario, data_parallel=2, **fields)
    assert only(micro_batches(Pricing(scenario, here))) == 8
    expected = waiting * 2 * (T * 64 / 2 + T * V / 2)
    assert only(deferred_head_bytes(Pricing(scenario, here))) == expected


def test_what_waits_is_on_the_last_rank_alone() -> None:
    needs = []
    for limit in ("0", "4"):
        scenario = scenario_of("llama3.1-8b", options=FUSED | {"deferred_head_gradients": limit}, devices=8)
        answer = priced(scenario, tensor_parallel=4, pipeline_parallel=2, sequence_parallel=True)
        needs.append(answer.memory.allocated[:, 0])
    assert needs[1][0] == needs[0][0]
    assert needs[1][1] - needs[0][1] == pytest.approx(4 * 2 * 8192 * (4096 + 128256) / 4)
