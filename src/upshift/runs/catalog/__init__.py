"""The queryable index of runs, tasks and attempts, in SQLite or PostgreSQL.

If it is lost, it is rebuilt from the stores.
"""
