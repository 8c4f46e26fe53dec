"""What the processes of a step use, as their supervisor sees it from outside."""
