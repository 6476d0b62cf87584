"""FlagScale: `framework` reads its experiments, whose keys mean what Megatron-Bridge's do."""
