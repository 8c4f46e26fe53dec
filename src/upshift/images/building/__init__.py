"""How images are made: resolved, installed, packed, and pushed to a registry or loaded into an engine."""
