"""Kubernetes: steps as Jobs of a cluster that is reached through a kubeconfig, or from inside of it."""
