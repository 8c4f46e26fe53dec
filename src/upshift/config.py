"""``from upshift.config import DockerSettings``: the import path that users of ZenML know."""

from upshift.model.settings.docker import DockerSettings
from upshift.model.settings.resources import ResourceSettings
from upshift.model.settings.retry import Retry

__all__ = ["DockerSettings", "ResourceSettings", "Retry"]
