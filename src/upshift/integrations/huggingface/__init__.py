"""As ``zenml.integrations.huggingface``."""
