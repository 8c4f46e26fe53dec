"""How fast Upshift is, beside what the machine itself can do: ``python -m benchmarks``."""
