"""MindSpeed and MindSpeed-LLM, beside Megatron-LM's own words."""
