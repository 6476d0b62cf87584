"""OLMo: `framework` reads the configuration files of its trainer."""
