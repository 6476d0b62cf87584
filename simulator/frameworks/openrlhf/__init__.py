"""OpenRLHF: finetuning, preferences and reward models under DeepSpeed."""
