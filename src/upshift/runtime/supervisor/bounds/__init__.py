"""The bounds of a step process: memory, CPUs, session and environment."""
