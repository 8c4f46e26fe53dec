"""Views of runs, steps, tasks, attempts and outputs, made from the catalog and the store."""
