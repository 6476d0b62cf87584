"""Inputs of a question: model, cluster, workload, layouts, and the words and numbers they are made of."""
