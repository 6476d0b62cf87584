"""PaddleNLP, PaddleFormers and ERNIEKit: `read` reads launches and files, `framework` logs, `write` writes scripts."""
