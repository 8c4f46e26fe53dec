"""The accelerators of this machine among the tasks of its supervisors."""
