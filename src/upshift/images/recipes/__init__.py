"""From settings to a recipe: everything that they name is read, flattened and hashed."""
