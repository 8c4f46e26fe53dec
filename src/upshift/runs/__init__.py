"""Runs on record: the catalog, looking back at them, rebuilding it, and collecting what nobody needs."""
