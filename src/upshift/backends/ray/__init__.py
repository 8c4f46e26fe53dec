"""Ray: steps as jobs of a cluster, by its dashboard."""
