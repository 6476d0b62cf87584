"""OLMo's trainer."""
