"""Bytes that autograd saves for one layer of the reference trainer; `python -m tests.trainer.saved CASE` prints them.

A process of its own, since torch keeps what it learnt of a process group. CASE is JSON: a model's name or its changed
fields, sequence length, tensor parallel size, sequence parallelism and recomputation.
"""

import json
import sys
from dataclasses import replace
from typing import Any

import torch
from torch import distributed
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from torch.testing._internal.distributed.fake_pg import FakeStore

from simulator.lab.trainer.model import Stage
from simulator.lab.trainer.worker import apply_recompute, apply_tensor_parallel
from simulator.question.scenario.layout import Layout
from simulator.question.specs.catalogue import load_model


def saved_bytes(case: dict[str, Any]) -> int:
    """Storages saved for the backward pass of one layer, without parameters and rotary tables."""
    model = replace(load_model(case["model"]), **case.get("fields", {}))
    tp, sequence_parallel = case.get("tp", 1), case.get("sequence_parallel", case.get("tp", 1) > 1)
    layout = Layout(tensor_parallel=tp, recompute=case.get("recompute", "none"), stage_layers=(1,))
    distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=tp)
    mesh = init_device_mesh("cpu", (tp,))
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("meta"):
        stage = Stage(model, [0], seq_length=case["seq_length"], embedding=False, head=False)
    apply_tensor_parallel(stage, mesh, sequence_parallel=sequence_parallel)
    apply_recompute(stage, layout)
    saved: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        local = tensor._local_tensor if isinstance(tensor, DTensor) else tensor
        storage = local.untyped_storage()
        saved[storage._cdata] = storage.nbytes()
        return tensor

    with FakeTensorMode(allow_non_fake_inputs=True):
        stage.to_empty(device="cpu")
        tokens = case["seq_length"] // (tp if sequence_parallel else 1)
        x = torch.empty((case.get("batch", 1), tokens, model.hidden_size), requires_grad=True)
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            kept = stage(x)
        apart = [*stage.parameters(), *stage.buffers()]
        for tensor in apart:
            local = tensor._local_tensor if isinstance(tensor, DTensor) else tensor
            saved.pop(local.untyped_storage()._cdata, None)
        del kept
    return sum(saved.values())


if __name__ == "__main__":
    print(saved_bytes(json.loads(sys.argv[1])))  # noqa: T201
