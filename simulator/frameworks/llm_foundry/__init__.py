"""llm-foundry: `framework` reads its configuration files, which Composer trains with FSDP."""
