"""A rank of the reference trainer that also leaves the norm of every gradient before its first update.

Adam forgives a gradient of the wrong size, so that the losses alone would not tell.
"""

import json
import os
import sys
from pathlib import Path

import torch
from torch.distributed.tensor import DTensor

from simulator.lab.trainer import __main__ as program
from simulator.lab.trainer import worker
from simulator.lab.trainer.job import RankResult
from simulator.lab.trainer.model import WRAPPER
from simulator.lab.trainer.process import leave
from simulator.lab.trainer.worker import loss_context

NORMS = "norms-{rank}.json"


class WithGradients(worker.Trainer):
    def train(self) -> RankResult:
        path = Path(sys.argv[1]).with_name(NORMS.format(rank=os.environ["RANK"]))
        path.write_text(json.dumps(self._norms()), encoding="utf-8")
        self._optimizer.zero_grad()
        return super().train()

    def _norms(self) -> dict[str, float]:
        with loss_context(self._job.layout.tensor_parallel):
            self._passes.run(self._tokens, self._targets)
        if self._tied is not None:
            self._tied.add_gradients()
        norms = {}
        for stage in self._stages:
            for name, parameter in stage.named_parameters():
                gradient = parameter.grad
                assert gradient is not None, name
                whole = gradient.full_tensor() if isinstance(gradient, DTensor) else gradient
                norms[name.replace(WRAPPER, "")] = float(torch.linalg.vector_norm(whole))
        return norms


if __name__ == "__main__":
    worker.Trainer = WithGradients  # type: ignore[misc]
    leave(program.main(sys.argv[1:]))
