"""verl's finetuning by FSDP."""
