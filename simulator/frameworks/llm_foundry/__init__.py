"""llm-foundry."""
