"""Primus: `framework` reads its experiments, whose keys are Megatron-LM's flags or torchtitan's keys."""
