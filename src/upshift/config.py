"""``from upshift.config import DockerSettings``: the import path that users of ZenML know."""

from upshift.model.settings import DockerSettings, ResourceSettings, Retry

__all__ = ["DockerSettings", "ResourceSettings", "Retry"]
