"""What a user can set."""

from upshift.config.docker import DockerSettings
from upshift.config.resources import ResourceSettings
from upshift.config.retry import Retry

__all__ = ["DockerSettings", "ResourceSettings", "Retry"]
