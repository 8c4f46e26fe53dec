"""What a user can set."""
