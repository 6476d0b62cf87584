"""What the reference trainer refuses before anything is launched."""

import subprocess
import sys
from typing import Any

import pytest

from simulator.errors import UnsupportedError
from simulator.lab.trainer.job import TrainingJob, check_job, from_json, refused, to_json
from simulator.question.specs.catalogue import load_model
from tests.project.tree import ROOT
from tests.trainer.launches import job_of, tiny_model

SOUND: tuple[dict[str, Any], ...] = (
    {},
    {"tensor_parallel": 2},
    {"tensor_parallel": 4, "sequence_parallel": True},
    {"pipeline_parallel": 2},
    {"pipeline_parallel": 2, "stage_layers": (1, 3)},
    {"pipeline_parallel": 2, "virtual_stages": 2},
    {"data_parallel": 2, "zero_stage": 3, "recompute": "selective"},
    {"recompute": "full", "recompute_method": "block", "recompute_layers": 2},
    {"recompute": "full", "recompute_method": "list", "recompute_layer_list": (0, 3)},
)


@pytest.mark.parametrize("layout", SOUND)
def test_a_sound_layout_is_not_refused(layout: dict[str, Any]) -> None:
    assert refused(job_of(layout)) is None


@pytest.mark.parametrize(
    ("layout", "fields", "names"),
    [
        ({"context_parallel": 2}, {}, "context_parallel 2"),
        ({"expert_parallel": 2}, {}, "expert_parallel 2"),
        ({"offload": "optimizer"}, {}, "offload optimizer"),
        ({"pipeline_parallel": 2, "schedule": "zb_h1"}, {}, "schedule zb_h1"),
        ({"recompute": "full", "recompute_layers": 2}, {}, "recompute_layers 2"),
        ({"tensor_parallel": 8}, {}, "num_key_value_heads 4"),
        ({"tensor_parallel": 3}, {}, "num_attention_heads 8"),
        ({"tensor_parallel": 4, "sequence_parallel": True}, {"seq_length": 126}, "seq_length 126"),
        ({"data_parallel": 3}, {}, "global_batch_size 4"),
        ({"micro_batch_size": 3}, {}, "global_batch_size 4"),
        ({"stage_layers": (3,)}, {}, r"stage_layers \[3\]"),
        ({"pipeline_parallel": 2, "stage_layers": ()}, {}, r"stage_layers \[\]"),
        ({"virtual_stages": 2}, {}, "virtual_stages 2"),
        ({"pipeline_parallel": 2, "virtual_stages": 3}, {}, "virtual_stages 3"),
        ({"pipeline_parallel": 2, "virtual_stages": 2, "stage_layers": (3, 1)}, {}, "virtual_stages 2"),
        ({"pipeline_parallel": 4}, {"global_batch_size": 2}, "2 micro batches"),
        ({"pipeline_parallel": 2, "virtual_stages": 2}, {"global_batch_size": 5}, "5 micro batches"),
        ({}, {"precision": "fp8"}, "precision fp8"),
        ({}, {"backend": "cuda"}, "8 heads on 4 key-value heads"),
        ({}, {"model": load_model("mixtral-8x7b-v0.1")}, "mixture-of-experts"),
        ({}, {"model": tiny_model(attention="mla")}, "mla"),
        ({}, {"model": tiny_model(norm_placement="after")}, "it sets norm_placement"),
    ],
)
def test_what_cannot_run_is_named_in_one_line(layout: dict[str, Any], fields: dict[str, Any], names: str) -> None:
    job = job_of(layout, **fields)
    with pytest.raises(UnsupportedError, match=names) as refusal:
        check_job(job)
    assert refused(job) == str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_a_job_reads_back_equal() -> None:
    job = job_of({"pipeline_parallel": 2, "recompute": "full", "recompute_layer_list": (1, 2)}, memory_limit_bytes=7)
    assert from_json(TrainingJob, to_json(job)) == job


def test_what_the_runner_imports_brings_no_torch() -> None:
    code = "import simulator.lab.trainer.process, simulator.lab.trainer.job, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0
