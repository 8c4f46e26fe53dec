"""Ray: steps as jobs of a cluster whose nodes share a file system with the machine that submits."""
