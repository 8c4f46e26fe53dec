"""Kubeflow Pipelines: whole pipelines, of which each step is a pod."""
