"""Command line: `main` has the commands, `options` shared options, `streams` the output; others a command each."""
