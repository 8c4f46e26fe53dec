"""The user's code: its modules and cells, what is wrong with them, and where its exceptions are from."""
