"""Imported last by the process that others are forked from: what it holds is in no collection of theirs.

A rank looks through all objects for tensors at each measured step; those of torch's own modules are half a million.
"""

import gc

from simulator.lab.trainer.job import TrainingJob, from_json, to_json
from simulator.question.scenario.layout import Layout
from simulator.question.specs.catalogue import load_model

# Each rank reads a job: what that imports at first use is here already.
_MODEL, _LAYOUT = load_model("llama3.2-1b"), Layout(stage_layers=(16,))
_JOB = TrainingJob(model=_MODEL, layout=_LAYOUT, seq_length=1, global_batch_size=1, steps=1, warmup_steps=1)
from_json(TrainingJob, to_json(_JOB))

gc.collect()
gc.freeze()
