"""What is said and what travels, as plain data: settings, graph, spec, the four records."""
