"""One attempt as its supervisor has it: its processes, what they say and use, and why they end."""
