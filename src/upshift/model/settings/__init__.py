"""What a user can set."""

from upshift.model.settings.docker import DockerSettings
from upshift.model.settings.resources import ResourceSettings
from upshift.model.settings.retry import Retry

__all__ = ["DockerSettings", "ResourceSettings", "Retry"]
