"""``from upshift.cards import Markdown``: as ``metaflow.cards``."""

from upshift.runtime.step.components import (
    Artifact,
    Error,
    Image,
    Markdown,
    ProgressBar,
    Table,
    VegaChart,
)
from upshift.runtime.step.rendering import HTML

__all__ = ["HTML", "Artifact", "Error", "Image", "Markdown", "ProgressBar", "Table", "VegaChart"]
