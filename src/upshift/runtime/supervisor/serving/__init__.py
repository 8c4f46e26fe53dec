"""The processes that supervise: for an engine, for a backend, or by hand; and what they tell these."""
