"""GPT-NeoX: `framework` translates its configuration files into Megatron-LM's flags."""
