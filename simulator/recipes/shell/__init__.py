"""Reading of the shell scripts that start a training run, without running them.

`source` parses, `walk` follows statements over a `state`, `words`, `arithmetic` and `assignments` expand them into
`values`, `launch` says what a command starts, `script` returns the launches.
"""
