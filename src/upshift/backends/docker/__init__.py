"""Containers on this machine, by Docker or Podman: one for each attempt."""
