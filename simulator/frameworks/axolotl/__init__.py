"""axolotl: `framework` translates its configuration files into the words of Hugging Face's Trainer."""
