"""Adapters over mixtures: whether routed experts have adapters and 4 bits hangs on how the library holds them."""

from pathlib import Path
from typing import Any

import pytest

import simulator
from simulator import Estimate
from simulator.answers.gates import Gates
from simulator.api import scenario_of
from simulator.cost.operations.layer import layer_operations
from simulator.cost.operations.record import conditions_of
from simulator.cost.operations.sums import adapters_of
from simulator.errors import InputError, PrecisionError
from simulator.question.question import question_of
from simulator.question.specs.catalogue import load_model
from simulator.recipes.check.judge import check_files
from tests.recipes.test_formats import FACTORY
from tests.specs.small_configs import SMALL as FAMILIES

GIB = 2.0**30
SMALL = {"seq_length": 1024, "global_batch_size": 4, "micro_batch_size": 1, "recompute": "full"}


def over_4_bits(model: str, stack: str, hardware: str = "h200", **options: str) -> Estimate:
    words: dict[str, Any] = {**SMALL, "hardware": hardware, "options": options}
    return simulator.estimate(model=model, stack=stack, devices=1, method="qlora", lora_rank=8, **words)


def state_bytes(answer: Estimate, part: str) -> float:
    return answer.memory.parts_bytes.get(part, 0.0)


def test_adapters_beside_experts_are_those_of_unsloth_s_gpt_oss() -> None:
    """Unsloth's notebook of gpt-oss-20b, rank 8: 3,981,312 trained parameters, 8 (2880 + 4096) 2 + 8 (2880 + 512) 2."""
    trained = 24 * 8 * (2 * (2880 + 4096) + 2 * (2880 + 512))
    assert trained == 3_981_312
    answer = over_4_bits("gpt-oss-20b", "unsloth", expert_adapters="false")
    assert state_bytes(answer, "gradients") == pytest.approx(4 * trained, rel=0.001)


def test_experts_that_no_library_quantises_stay_in_16_bits() -> None:
    """48 layers of 128 experts with three matrices of 2048 x 768: 12 more bits each, less a scale."""
    narrow, wide = (over_4_bits("qwen3-30b-a3b", "llama-factory", quantised_experts=word) for word in ("true", "false"))
    experts = 48 * 128 * 3 * 2048 * 768
    more = experts * (2 - 0.5 - 1.015625 / 64)
    assert state_bytes(wide, "parameters") - state_bytes(narrow, "parameters") == pytest.approx(more, rel=0.001)


def test_experts_that_are_not_quantised_are_gathered_in_16_bits() -> None:
    """Under ZeRO 3 two layers are gathered: of 8 experts with three matrices of 4096 x 14336 each."""
    words: dict[str, Any] = {**SMALL, "hardware": "h200", "devices": 2, "method": "qlora", "zero_stage": 3}
    narrow, wide = (
        simulator.estimate(model="mixtral-8x7b", stack="peft", options={"quantised_experts": word}, **words)
        for word in ("true", "false")
    )
    experts = 8 * 3 * 4096 * 14336
    more = state_bytes(wide, "temporary") - state_bytes(narrow, "temporary")
    assert more == pytest.approx(2 * experts * (2 - 0.5 - 4 / 64), rel=0.001)


def test_experts_outside_a_4_bit_base_are_widened_as_peft_widens_the_rest() -> None:
    """peft 0.19, utils/other.py, `prepare_model_for_kbit_training`: what is not of 4 bits becomes fp32."""
    answer = over_4_bits("qwen3-30b-a3b", "trl", quantised_experts="false", widened_rest="true")
    assert state_bytes(answer, "parameters") > 48 * 128 * 3 * 2048 * 768 * 4


@pytest.mark.full_answer
@pytest.mark.parametrize(("stack", "name"), [("trl", "quantised_experts"), ("unsloth", "expert_adapters")])
def test_no_firm_answer_hangs_on_how_experts_are_held(stack: str, name: str) -> None:
    """TRL's adapters are on queries and values alone; Unsloth quantises experts itself."""
    answer = over_4_bits("qwen3-30b-a3b", stack, "rtx-4090")
    assert answer.verdict == "depends"
    assert answer.open is not None
    assert name in answer.open.names


@pytest.mark.full_answer
def test_said_they_are_not_open() -> None:
    answer = over_4_bits("qwen3-30b-a3b", "unsloth", "rtx-4090", expert_adapters="false", quantised_experts="true")
    assert answer.open is None or not {"expert_adapters", "quantised_experts"} & set(answer.open.names)


MIXTURE = f"{FACTORY}quantization_bit: 4\n".replace("full", "lora").replace(
    "meta-llama/Meta-Llama-3-8B-Instruct", "Qwen/Qwen3-30B-A3B"
)


@pytest.mark.parametrize(("hardware", "outcome"), [("rtx-4090", "depends"), ("b200", "fits")])
def test_a_recipe_is_read_both_ways(hardware: str, outcome: str, tmp_path: Path) -> None:
    file = tmp_path / "llamafactory.yaml"
    file.write_text(MIXTURE, encoding="utf-8")
    question = question_of({"hardware": hardware, "nodes": 1, "seq_length": 1024})
    checked = check_files([str(file)], question, Gates())[0]
    assert checked.outcome == outcome
    assert any("routed experts are priced with adapters and in 16 bits" in each.message for each in checked.remarks)


@pytest.mark.parametrize("hardware", ["t4", "v100-sxm-32g"])
def test_a_device_without_bf16_trains_in_fp16_unless_it_is_said(hardware: str) -> None:
    words: dict[str, Any] = {**SMALL, "hardware": hardware, "model": "llama3.2-1b", "devices": 1}
    assert simulator.estimate(**words).precision == "fp16"
    with pytest.raises(PrecisionError, match="has no bf16 peak"):
        simulator.estimate(**words, precision="bf16")
    for groups in (f"{hardware}:1,a100-sxm-80g:1", f"a100-sxm-80g:1,{hardware}:1"):
        assert scenario_of(model="llama3.2-1b", hardware=groups).precision == "fp16"


MIXTRAL: dict[str, Any] = {
    "architectures": ["MixtralForCausalLM"],
    "model_type": "mixtral",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 3,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "vocab_size": 32000,
    "max_position_embeddings": 32768,
    "tie_word_embeddings": False,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
}
QWEN: dict[str, Any] = {
    **MIXTRAL,
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "moe_intermediate_size": 768,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "vocab_size": 151936,
}
GPT_OSS: dict[str, Any] = {
    **MIXTRAL,
    "architectures": ["GptOssForCausalLM"],
    "model_type": "gpt_oss",
    "hidden_size": 2880,
    "intermediate_size": 2880,
    "num_attention_heads": 64,
    "head_dim": 64,
    "num_local_experts": 32,
    "num_experts_per_tok": 4,
    "vocab_size": 201088,
    "attention_bias": True,
    "layer_types": ["full_attention"] * 3,
    "sliding_window": 128,
}
QWEN_2: dict[str, Any] = {
    **QWEN,
    "architectures": ["Qwen2MoeForCausalLM"],
    "model_type": "qwen2_moe",
    "intermediate_size": 5632,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "head_dim": None,
    "moe_intermediate_size": 1408,
    "shared_expert_intermediate_size": 5632,
    "num_experts": 60,
    "num_experts_per_tok": 4,
}
GRANITE: dict[str, Any] = {
    **MIXTRAL,
    "architectures": ["GraniteMoeForCausalLM"],
    "model_type": "granitemoe",
    "hidden_size": 1536,
    "intermediate_size": 512,
    "num_attention_heads": 24,
    "num_local_experts": 40,
    "num_experts_per_tok": 8,
    "vocab_size": 49155,
}
GLM: dict[str, Any] = {
    **MIXTRAL,
    "architectures": ["Glm4MoeForCausalLM"],
    "model_type": "glm4_moe",
    "intermediate_size": 10944,
    "num_attention_heads": 96,
    "head_dim": 128,
    "n_routed_experts": 32,
    "num_experts_per_tok": 8,
    "n_shared_experts": 1,
    "moe_intermediate_size": 1408,
    "first_k_dense_replace": 1,
    "use_qk_norm": False,
    "attention_bias": True,
    "vocab_size": 151552,
}
FOLDED = {"merged_expert_adapters": "folded"}
ADDED = {"merged_expert_adapters": "added"}
EAGER = {**FOLDED, "flash_attention": "false", "expert_adapters": "true"}  # no other attention in transformers 5.24
TRACED = [
    # Three layers of the whole width, one sample, adapters of rank 8 on all linear layers (gpt-oss: target_parameters):
    # most bytes of tensors alive under FakeTensorMode, with transformers 5.24 and peft 0.21 (folded) or 0.20 (added).
    (MIXTRAL, 2048, "none", FOLDED, 20272.2),
    (MIXTRAL, 2048, "none", ADDED, 22116.5),
    (MIXTRAL, 2048, "full", FOLDED, 13512.5),
    (MIXTRAL, 2048, "full", ADDED, 15336.6),
    (QWEN, 4096, "none", FOLDED, 18283.0),
    (QWEN, 4096, "full", FOLDED, 12329.0),
    (GPT_OSS, 2048, "none", EAGER, 19527.5),
    (GPT_OSS, 2048, "full", EAGER, 11837.4),
]


def merged(model: dict[str, Any], tokens: int = 2048, recompute: Any = "none", **options: Any) -> Estimate:
    return simulator.estimate(
        model=model,
        stack="transformers",
        method="lora",
        lora_rank=8,
        devices=1,
        hardware="h200",
        seq_length=tokens,
        micro_batch_size=1,
        global_batch_size=1,
        recompute=recompute,
        options={"adapter_targets": "all", "plain_module": "true", **options},
    )


@pytest.mark.parametrize(("model", "tokens", "recompute", "options", "traced_mib"), TRACED)
def test_experts_of_one_parameter_are_merged_with_their_adapters(
    model: dict[str, Any], tokens: int, recompute: str, options: dict[str, Any], traced_mib: float
) -> None:
    """Tensors that a step holds, but 64 MiB of cuBLAS' workspaces."""
    memory = merged(model, tokens, recompute, **options).memory
    assert memory.allocated_bytes / 2**20 == pytest.approx(traced_mib + 64, rel=0.015)


def test_each_layer_keeps_all_its_experts_once_more() -> None:
    """Qwen3-30B-A3B: 1,152 MiB a layer beside the 56 GiB of its experts."""
    kept = {
        word: merged({**QWEN, "num_hidden_layers": 48}, merged_expert_adapters=word).memory.parts_bytes["activations"]
        for word in ("none", "folded")
    }
    assert kept["folded"] - kept["none"] == 48 * 2 * 128 * 3 * 2048 * 768


@pytest.mark.parametrize("closed", [{"expert_adapters": "false"}, {"adapter_targets": "attention"}])
def test_nothing_is_merged_where_experts_have_no_adapters(closed: dict[str, Any]) -> None:
    apart, folded = (merged(QWEN, merged_expert_adapters=word, **closed).memory for word in ("none", "folded"))
    assert folded == apart


def test_gate_and_up_have_one_adapter_of_both_their_ranks() -> None:
    """Its second matrix has 16 columns for each output of the two: 8 more in fp32, with a gradient and two moments."""
    apart, folded = (
        merged(QWEN, recompute="full", merged_expert_adapters=word, release_grads="false").memory.parts_bytes
        for word in ("none", "folded")
    )
    more = 3 * 128 * 8 * 2 * 768
    assert folded["gradients"] - apart["gradients"] == 4 * more
    assert folded["optimizer"] - apart["optimizer"] == 8 * more


@pytest.mark.parametrize(
    ("stored", "width"),
    [
        ({"frozen_dtype": "fp32"}, 4),
        ({"quantised_base": "true", "quantised_experts": "false", "widened_rest": "true"}, 4),
        ({"quantised_base": "true", "quantised_experts": "false", "widened_rest": "false"}, 2),
    ],
)
def test_experts_are_merged_in_the_type_of_the_base(stored: dict[str, Any], width: int) -> None:
    """torch.baddbmm of the parameter, with autocast off."""
    none, folded = (
        merged(QWEN, merged_expert_adapters=word, **stored).memory.parts_bytes["activations"]
        for word in ("none", "folded")
    )
    assert folded - none == 3 * width * 128 * 3 * 2048 * 768


@pytest.mark.full_answer
@pytest.mark.parametrize(("stack", "is_open"), [("trl", True), ("unsloth", False), ("torchtune", False)])
def test_who_merges_experts_is_open_over_peft_alone(stack: str, is_open: bool) -> None:
    words: dict[str, Any] = {**SMALL, "recompute": "none", "stack": stack, "options": {"adapter_targets": "all"}}
    answer = simulator.estimate(model="qwen3-30b-a3b", method="lora", hardware="h200", devices=1, **words)
    names = answer.open.names if answer.open else ()
    assert ("merged_expert_adapters" in names) == is_open


SMALL_COUNTS = [
    # peft 0.21 over transformers 5.24, `target_modules="all-linear"` and a list of seven names, rank 4: trainable
    # parameters of the small configurations. Its conversion of experts takes the names of networks beside them.
    ("mixtral", 81_504, None),
    ("qwen2_moe", 21_448, 20_928),
    ("qwen3_moe", 66_720, 65_280),
    ("deepseek_v2", 55_488, 43_392),
    ("deepseek_v3", 55_488, 43_392),
    ("deepseek_v3 without query rank", 54_336, 47_232),
    ("deepseek_v32", 60_336, 43_392),
    ("glm4_moe", 1_173_920, 1_172_480),
    ("glm_moe_dsa", 58_720, 43_392),
    ("gpt_oss", 15_360, 15_360),
    ("minimax_m2", 146_112, None),
    ("llama4", 614_064, 613_248),
    ("mimo_v2_flash", 17_920, 17_920),
    ("ernie4_5_moe", 519_744, 519_168),
    ("olmoe", 143_040, 141_312),
    ("flex_olmo", 141_504, 139_776),
    ("qwen3_next", 66_772, 52_992),
    ("qwen3_5", 28_192, 14_592),
    ("qwen3_5_moe", 25_720, 10_560),
    ("minimax", 83_808, None),
    ("deepseek_v4", 24_720, None),
    ("gemma4 with experts", 30_912, 29_184),
    ("granitemoe", 10_752, 10_752),
    ("granitemoehybrid", 18_304, None),
    ("phimoe", 12_384, 10_752),
    ("kimi_linear", 24_160, 15_360),
    ("llama", 26_880, 26_880),
    ("gpt2", 12_288, None),
    ("phi3", 17_664, None),
    ("mpt", 12_288, None),
]


def trained(model: Any, targets: str, rank: int) -> float:
    run: dict[str, Any] = {"hardware": "h200", "devices": 1, "seq_length": 16, "global_batch_size": 1}
    run |= {"stack": "peft", "method": "lora", "lora_rank": rank, "options": {"adapter_targets": targets}}
    scenario = scenario_of(model=model, **run)
    conditions, layers = conditions_of(scenario), scenario.model.layer_counts.items()
    return sum(count * adapters_of(conditions, layer_operations(conditions, kind)).all for kind, count in layers)


@pytest.mark.parametrize(("name", "every", "listed"), SMALL_COUNTS)
def test_trained_parameters_are_those_that_peft_counts(name: str, every: int, listed: int | None) -> None:
    family, keys = FAMILIES[name]
    assert trained({"model_type": family, **keys}, "all", 4) == every
    if listed is not None:
        assert trained({"model_type": family, **keys}, "q+k+v+o+gate+up+down", 4) == listed


@pytest.mark.parametrize(
    ("model", "layer", "query_value"),
    [
        # Rank 8: W_pack or c_attn of 4096 x 12288, o and three of 11008; wqkv of 4096 x 6144; query_key_value of
        # 4096 x 4608 with dense_h_to_4h of 4096 x 27392.
        ("baichuan2-7b", 16384 + 8192 + 3 * 15104, 16384),
        ("qwen-7b", 16384 + 8192 + 3 * 15104, 16384),
        ("internlm2.5-7b", 10240 + 8192 + 3 * 18432, 10240),
        ("chatglm2-6b", 8704 + 8192 + 31488 + 17792, 8704),
    ],
)
def test_products_that_checkpoints_join_have_one_adapter(model: str, layer: int, query_value: int) -> None:
    layers = load_model(model).num_hidden_layers
    assert trained(model, "all", 8) == 8 * layers * layer
    assert trained(model, "query_value", 8) == trained(model, "q+k+v", 8) == 8 * layers * query_value


PASSED_OVER = [
    # Traced as above, `all-linear` with peft 0.21: experts that it passes over.
    (GPT_OSS, "none", 14553.6),
    (GPT_OSS, "full", 11702.8),
    (QWEN_2, "none", 8996.4),
    (QWEN_2, "full", 8069.2),
    (GRANITE, "full", 2059.8),
    (GLM, "full", 9190.0),
]


@pytest.mark.parametrize(("model", "recompute", "traced_mib"), PASSED_OVER)
def test_experts_that_peft_passes_over_have_neither_adapters_nor_copies(
    model: dict[str, Any], recompute: str, traced_mib: float
) -> None:
    """The last merges experts and has no adapters at the networks beside them."""
    eager: dict[str, Any] = {"flash_attention": "false"} if model is GPT_OSS else {}
    memory = merged(model, recompute=recompute, **eager).memory
    assert memory.allocated_bytes / 2**20 == pytest.approx(traced_mib + 64, rel=0.02)


def test_a_list_names_its_layers_alone() -> None:
    """Over Llama's layer: o of 4096, down of 14336 to 4096."""
    assert trained("llama3.1-8b", "down+o", 8) == 8 * 32 * (2 * 4096 + 14336 + 4096)
    with pytest.raises(InputError, match=r"adapter_targets=q\+x: allowed are"):
        trained("llama3.1-8b", "q+x", 8)
