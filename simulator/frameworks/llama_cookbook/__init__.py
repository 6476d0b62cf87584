"""llama-cookbook: `framework` reads its `finetuning.py`, FSDP 1 by flags."""
