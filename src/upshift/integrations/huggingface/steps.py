"""As ``zenml.integrations.huggingface.steps``."""

from upshift.authoring.launching import run_with_accelerate

__all__ = ["run_with_accelerate"]
