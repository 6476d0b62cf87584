"""MindSpeed and MindSpeed-LLM: `framework` adds their behaviour on Ascend to a run read from Megatron-LM's flags."""
