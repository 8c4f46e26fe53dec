"""What is in the image that another one is built on, from the cheapest source that knows."""
