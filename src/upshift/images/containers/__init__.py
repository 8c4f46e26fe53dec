"""The container engine of this machine, Docker or Podman, by its command line; images that it builds."""
