"""Runs on record: catalog, views, the stores they share, and removing what nobody needs."""
