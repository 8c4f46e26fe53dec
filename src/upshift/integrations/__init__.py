"""Import paths that users of other tools know."""
