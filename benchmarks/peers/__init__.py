"""Upshift beside other tools, measured in turns: ``python -m benchmarks.peers``."""
