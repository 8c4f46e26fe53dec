"""The container engine of this machine, Docker or Podman, by its command line, and what only it can build."""
