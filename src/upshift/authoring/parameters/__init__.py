"""A pipeline's parameters as users give them: ``--param NAME=VALUE``, and files of JSON, YAML or TOML."""
