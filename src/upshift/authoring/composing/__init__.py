"""Composing: calls of steps become the nodes of a graph, values become its sources."""
