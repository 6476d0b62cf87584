"""Primus: experiments whose keys are the flags of Megatron-LM or the keys of torchtitan."""
