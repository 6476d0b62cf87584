"""OpenRLHF: `framework` reads its fine-tuning programs, supervised and on preferences."""
