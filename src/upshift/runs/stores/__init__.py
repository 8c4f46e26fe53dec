"""What engines share in a store: ownership of runs, claims on content, and its way into a bucket."""
