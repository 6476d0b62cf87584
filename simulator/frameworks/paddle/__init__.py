"""PaddleNLP, PaddleFormers and ERNIEKit."""
