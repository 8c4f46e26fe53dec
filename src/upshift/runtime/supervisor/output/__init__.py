"""What step processes print, on its way to logs: in whole lines, and without secrets."""
