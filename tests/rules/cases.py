"""Of every rule, layouts that break it and no other, and ones that keep it."""

from dataclasses import dataclass, field
from typing import Any

from simulator.question.scenario.scenario import Scenario
from simulator.question.specs.model import ModelSpec
from tests.scenario.cases import scenario_of, small_compressed, small_dense, small_mla, small_moe, small_sliding


@dataclass(frozen=True)
class Case:
    """A question and two layouts of it that differ in what one rule is about."""

    broken: dict[str, Any]
    kept: dict[str, Any]
    model: ModelSpec = field(default_factory=small_dense)
    question: dict[str, Any] = field(default_factory=dict)
    kept_question: dict[str, Any] | None = None

    def scenario(self, *, keeps: bool) -> Scenario:
        changed = self.kept_question if keeps and self.kept_question is not None else self.question
        return scenario_of(self.model, **changed)


SEQUENCE = {"tensor_parallel": 2, "sequence_parallel": True}


def _option(name: str, value: object) -> dict[str, Any]:
    return {"options": {name: str(value)}}


def _modules(*modules: str) -> dict[str, Any]:
    return {"recompute": "selective", "recompute_modules": modules}


_FP4 = {"hardware": "b200-sxm", "precision": "fp4"}
CHUNKS = {"pipeline_parallel": 2, "virtual_stages": 2, "stage_layers": (2, 2)}
RING = {"devices": 24, "seq_length": 6144, "global_batch_size": 48}
OVERLAP = {"options": {"overlap_expert_exchange": "true"}}

CASES: dict[str, list[Case]] = {
    "expert_overlap": [
        Case(
            {"pipeline_parallel": 2, "expert_parallel": 2},
            {"pipeline_parallel": 2, "expert_parallel": 2, "virtual_stages": 2},
            small_moe(),
            OVERLAP,
        ),
        Case({"expert_parallel": 2, "recompute": "full"}, {"expert_parallel": 2}, small_moe(), OVERLAP),
        Case({"pipeline_parallel": 2, "expert_parallel": 2}, {"pipeline_parallel": 2}, small_moe(), OVERLAP),
        Case(
            {"pipeline_parallel": 2, "expert_parallel": 2, "virtual_stages": 2, "recompute": "full"},
            {"pipeline_parallel": 2, "expert_parallel": 2},
            small_moe(),
            OVERLAP,
            {},
        ),
    ],
    "devices": [Case({"data_parallel": 4}, {"data_parallel": 8})],
    # Latent attention has no key-value heads of its own to divide.
    "heads": [Case({"tensor_parallel": 8}, {"tensor_parallel": 4}, small_mla())],
    "undivided_attention": [
        Case({"tensor_parallel": 2}, {}, small_compressed("window_shared")),
        Case({"context_parallel": 2}, {"pipeline_parallel": 2}, small_compressed("heavily_compressed")),
    ],
    # Megatron gives every rank a copy of a head where it can; the others split heads or refuse.
    "kv_heads": [
        Case({"tensor_parallel": 4}, {"tensor_parallel": 4}, small_dense(), {"profile": "paddle"}, {}),
        Case({"tensor_parallel": 2}, {}, small_dense(num_attention_heads=6, num_key_value_heads=3)),
        Case({"tensor_parallel": 2}, {}, small_sliding(num_key_value_heads=2, sliding_key_value_heads=3)),
    ],
    "ffn": [
        Case({"tensor_parallel": 2}, {}, small_dense(intermediate_size=161)),
        Case(SEQUENCE, {}, small_moe(moe_intermediate_size=47)),
        # Without dense layers nothing has the dense width.
        Case(
            SEQUENCE | {"expert_tensor_parallel": 2},
            SEQUENCE,
            small_moe(first_k_dense_replace=0, intermediate_size=161, moe_intermediate_size=47, num_shared_experts=0),
        ),
        Case(
            SEQUENCE | {"expert_tensor_parallel": 2},
            SEQUENCE,
            small_moe(moe_intermediate_size=47, num_shared_experts=0),
        ),
    ],
    "vocabulary": [
        Case(
            {"tensor_parallel": 2},
            {"tensor_parallel": 2},
            small_dense(vocab_size=1001),
            {"profile": "paddle"},
            {"profile": "torch"},
        )
    ],
    "layers": [
        Case({"pipeline_parallel": 2, "stage_layers": (3, 3)}, {"pipeline_parallel": 2, "stage_layers": (3, 1)}),
        # Listed chunks add up to the ranks' layers, as many as there are; with a list a rank may hold none.
        Case(CHUNKS | {"chunk_layers": (1, 1, 2)}, CHUNKS | {"chunk_layers": (1, 1, 1, 1)}),
        Case(CHUNKS | {"chunk_layers": (2, 1, 1, 0)}, CHUNKS | {"chunk_layers": (2, 1, 0, 1)}),
        Case(
            CHUNKS | {"chunk_layers": (2, 1, 2, 0), "stage_layers": (4, 0)},
            CHUNKS | {"chunk_layers": (2, 0, 2, 0), "stage_layers": (4, 0)},
        ),
    ],
    "schedule": [
        Case({"pipeline_parallel": 2, "schedule": "zb_h1"}, {"pipeline_parallel": 2}),
        Case(
            {"pipeline_parallel": 2, "schedule": "zb_v"},
            {"pipeline_parallel": 2, "schedule": "zb_v", "virtual_stages": 2},
            question={"profile": "torch"},
        ),
        # Four micro batches on two ranks with as many stages; two are too few.
        Case(
            {"pipeline_parallel": 2, "schedule": "dualpipev", "virtual_stages": 2, "micro_batch_size": 2},
            {"pipeline_parallel": 2, "schedule": "dualpipev", "virtual_stages": 2},
            question={"profile": "torch", "global_batch_size": 16},
        ),
        Case({"schedule": "zb_h1"}, {"schedule": "zb_h1", "pipeline_parallel": 2}, question={"profile": "torch"}),
    ],
    "virtual_stages": [
        Case({"virtual_stages": 2}, {"virtual_stages": 2, "pipeline_parallel": 2}),
        Case({"virtual_stages": 3, "pipeline_parallel": 2}, {"virtual_stages": 2, "pipeline_parallel": 2}),
        # Equal cuts only, where the framework builds no others.
        Case(
            {"virtual_stages": 2, "pipeline_parallel": 2, "stage_layers": (2, 6)},
            {"virtual_stages": 2, "pipeline_parallel": 2, "stage_layers": (4, 4)},
            small_dense(num_hidden_layers=8),
            {"profile": "paddle"},
            {"profile": "megatron"},
        ),
        Case(
            {"pipeline_parallel": 2, "virtual_stages": 2, "chunk_layers": (1, 3, 2, 2), "stage_layers": (3, 5)},
            {"pipeline_parallel": 2, "virtual_stages": 2, "stage_layers": (4, 4)},
            small_dense(num_hidden_layers=8),
            {"profile": "paddle"},
        ),
        # Cuts that differ, without a list, hold no whole chunks.
        Case(
            {"virtual_stages": 2, "pipeline_parallel": 2, "stage_layers": (3, 1)},
            {"virtual_stages": 1, "pipeline_parallel": 2, "stage_layers": (3, 1)},
        ),
        # Three micro batches on two ranks.
        Case(
            {"virtual_stages": 2, "pipeline_parallel": 2},
            {"virtual_stages": 1, "pipeline_parallel": 2},
            question={"global_batch_size": 12},
        ),
    ],
    "batch": [Case({"micro_batch_size": 3}, {"micro_batch_size": 4})],
    "sequence": [
        Case({"context_parallel": 2}, {}, question={"seq_length": 1002}),
        Case(SEQUENCE, {"tensor_parallel": 2}, question={"seq_length": 1001}),
        Case(SEQUENCE | {"context_parallel": 2}, SEQUENCE, question={"seq_length": 1004}),
    ],
    "context_heads": [
        Case(
            {"context_parallel": 4},
            {"context_parallel": 2},
            question={"options": {"cp_communication": "all_to_all"}},
        ),
        # Two heads over four ranks are copied, unless the ranks that share a sequence exchange them.
        Case(
            {"tensor_parallel": 2, "context_parallel": 2},
            {"tensor_parallel": 4},
            question={"options": {"cp_communication": "all_to_all"}},
        ),
        Case(
            {"context_parallel": 4},
            {"context_parallel": 4},
            small_dense(num_key_value_heads=4),
            {"options": {"cp_communication": "all_to_all_ring", "cp_inner_degree": "3"}, "seq_length": 6144},
            {"options": {"cp_communication": "all_to_all_ring", "cp_inner_degree": "2"}, "seq_length": 6144},
        ),
        # Both heads go to two ranks each, and three ranks are no pairs.
        Case(
            {"context_parallel": 3},
            {"context_parallel": 3},
            small_dense(),
            RING | {"options": {"cp_communication": "all_to_all_ring", "cp_inner_degree": "2"}},
            RING | {"options": {"cp_communication": "all_to_all_ring", "cp_inner_degree": "1"}},
        ),
    ],
    "unfused_context": [
        Case({"context_parallel": 2}, {}, question={"options": {"flash_attention": "false"}}),
        Case(
            {"context_parallel": 2},
            {"context_parallel": 2},
            question={"options": {"flash_attention": "false"}},
            kept_question={"options": {"flash_attention": "true"}},
        ),
    ],
    "experts": [
        Case({"expert_parallel": 2}, {}),
        Case({"expert_parallel": 3}, {"expert_parallel": 4}, small_moe(), {"devices": 24, "global_batch_size": 48}),
        # Two ranks in a stage cannot hold four groups of experts.
        Case(
            {"expert_parallel": 4, "pipeline_parallel": 4},
            {"expert_parallel": 2, "pipeline_parallel": 4},
            small_moe(),
        ),
        Case(
            SEQUENCE | {"expert_parallel": 8, "expert_tensor_parallel": 2},
            SEQUENCE | {"expert_parallel": 4, "expert_tensor_parallel": 2},
            small_moe(),
        ),
    ],
    "sequence_parallel": [
        Case({"sequence_parallel": True}, {}),
        Case({"tensor_parallel": 2}, SEQUENCE, small_moe()),
        Case({"tensor_parallel": 2}, {"tensor_parallel": 2}, small_moe(), {}, {"profile": "torch"}),
    ],
    "zero_stage": [
        Case({"zero_stage": 2}, {"zero_stage": 1}),
        Case({"zero_stage": 3}, {"zero_stage": 3}, small_dense(), {}, {"profile": "torch"}),
        Case({"zero_stage": 2, "pipeline_parallel": 2}, {"zero_stage": 2}, question={"profile": "paddle"}),
    ],
    "sharding_groups": [
        Case(
            {"zero_stage": 1},
            {"zero_stage": 1},
            question={"options": {"sharding_degree": "3"}},
            kept_question={"options": {"sharding_degree": "4"}},
        ),
        Case({"zero_stage": 1}, {"zero_stage": 0}, question={"options": {"sharding_degree": "3"}}),
        # A degree beyond the ranks shards over all of them.
        Case(
            {"zero_stage": 1},
            {"zero_stage": 1},
            small_dense(),
            _option("sharding_degree", 3),
            _option("sharding_degree", 16),
        ),
        Case(
            {"zero_stage": 1},
            {"zero_stage": 1},
            small_dense(),
            _option("sharding_replicas", 3),
            _option("sharding_replicas", 2),
        ),
        Case({"zero_stage": 1}, {"zero_stage": 0}, question=_option("sharding_replicas", 3)),
        Case(
            {"zero_stage": 1},
            {"zero_stage": 1},
            small_dense(),
            {"options": {"sharding_replicas": "2", "sharding_degree": "4"}},
            _option("sharding_degree", 4),
        ),
    ],
    "parameters_on_host": [
        Case(
            {"zero_stage": 2},
            {"zero_stage": 3},
            question={"profile": "torch", "options": {"offload_parameters": "true"}},
        ),
    ],
    "step_in_backward": [
        Case(
            {"micro_batch_size": 1, "data_parallel": 8},
            {"micro_batch_size": 4, "data_parallel": 8},
            question={"profile": "torch", "options": {"step_in_backward": "true"}, "global_batch_size": 32},
        ),
    ],
    "offload_pipeline": [
        Case({"offload": "activations", "pipeline_parallel": 2}, {"offload": "activations"}),
        Case(
            {"offload": "activations", "pipeline_parallel": 2},
            {"offload": "activations", "pipeline_parallel": 2},
            small_dense(),
            {},
            {"profile": "torch"},
        ),
    ],
    "offload_recompute": [
        Case({"offload": "activations", "recompute": mode}, {"offload": "activations"})
        for mode in ("selective", "full", "attention")
    ]
    + [
        Case(
            {"offload": "activations", "recompute": "full"},
            {"offload": "activations", "recompute": "full"},
            small_dense(),
            {},
            {"profile": "torch"},
        )
    ],
    "captured_layers": [
        Case({"recompute": "full"}, {}, question=_option("cuda_graphs", "attention")),
        Case(
            {"recompute": "full"}, {"recompute": "full"}, small_dense(), {"options": {"cuda_graphs": "attention"}}, {}
        ),
    ],
    "two_stages": [
        Case(
            {"virtual_stages": 2, "pipeline_parallel": 2},
            {"virtual_stages": 2, "pipeline_parallel": 2},
            small_dense(),
            {"options": {"overlap_p2p": "false"}},
            {"profile": "paddle"},
        ),
        Case(
            {"virtual_stages": 2, "pipeline_parallel": 2},
            {"virtual_stages": 2, "pipeline_parallel": 4},
            small_dense(num_hidden_layers=8),
            {"options": {"overlap_p2p": "false"}},
        ),
        Case(
            {"virtual_stages": 2, "pipeline_parallel": 2},
            {"pipeline_parallel": 2},
            question=_option("overlap_p2p", "false"),
        ),
    ],
    "recompute_modules": [
        Case(_modules("mla_up_proj"), _modules("layernorm", "mlp", "shared_experts")),
        Case(_modules("core_attn", "moe_act"), _modules("core_attn", "moe")),
        Case(_modules("mla_up_proj"), _modules("mla_up_proj"), small_mla(), {"profile": "paddle"}, {}),
        Case(_modules("layernorm"), _modules("core_attn"), small_moe(), {"profile": "torch"}),
    ],
    "offloaded_modules": [
        Case({"recompute": "full"}, {"recompute": "none"}, question=_option("offloaded_modules", "core_attn")),
        Case({}, {}, question=_option("offloaded_modules", "attn_proj"), kept_question={}),
        # A paged stash holds what experts keep, and nothing of attention.
        Case(
            {"expert_parallel": 2},
            {"expert_parallel": 2},
            small_moe(),
            {"options": {"offloaded_modules": "expert_fc1", "expert_stash": "2"}},
            {"options": {"offloaded_modules": "core_attn", "expert_stash": "2"}},
        ),
        Case(
            {}, {}, small_moe(), {"profile": "torch"} | _option("offloaded_modules", "core_attn"), {"profile": "torch"}
        ),
    ],
    "fp4_recipe": [Case({}, {}, question=_FP4 | _option("fp4_recipe", "mxfp4"), kept_question=_FP4)],
    "fp8_recipe": [
        Case(
            {},
            {},
            question={"hardware": "h100-sxm-80g", "precision": "fp8"} | _option("fp8_recipe", "mxfp8"),
            kept_question={"hardware": "h100-sxm-80g", "precision": "fp8"},
        ),
        Case(
            {},
            {},
            question={"hardware": "h200-sxm", "precision": "fp8"} | _option("fp8_recipe", "mxfp8"),
            kept_question={"hardware": "b200-sxm", "precision": "fp8"} | _option("fp8_recipe", "mxfp8"),
        ),
    ],
    "recompute_operations": [
        Case({"recompute": "operations"}, {"recompute": "selective"}),
        Case({"recompute": "operations"}, {"recompute": "operations"}, kept_question={"profile": "torch"}),
        Case({"recompute": "operations"}, {"recompute": "full"}, small_moe(), {"profile": "paddle"}),
    ],
    "recompute_layers": [
        Case({"recompute": "full", "recompute_layers": 5}, {"recompute": "full", "recompute_layers": 4}),
        Case(
            {"recompute": "full", "recompute_layers": 2, "pipeline_parallel": 2, "virtual_stages": 2},
            {"recompute": "full", "recompute_layers": 1, "pipeline_parallel": 2, "virtual_stages": 2},
        ),
        Case(
            {"recompute": "full", "recompute_method": "list", "recompute_layer_list": (1, 4)},
            {"recompute": "full", "recompute_method": "list", "recompute_layer_list": (0, 3)},
        ),
        Case({"recompute_layer_list": (-1,)}, {"recompute_layer_list": (0,)}),
        # How many counts where layers are counted: not those of a list, and not without full recompute.
        Case(
            {"recompute": "full", "recompute_layers": 5},
            {"recompute": "full", "recompute_layers": 5, "recompute_method": "list", "recompute_layer_list": (0,)},
        ),
        # Of unequal chunks the longest has as many.
        Case(
            CHUNKS | {"chunk_layers": (2, 1, 0, 1), "recompute": "full", "recompute_layers": 3},
            CHUNKS | {"chunk_layers": (2, 1, 0, 1), "recompute": "full", "recompute_layers": 2},
        ),
    ],
}
