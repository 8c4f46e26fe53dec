"""What a user writes becomes a graph: steps, pipelines, decorators."""

from upshift.authoring.composing.placeholders import unmapped
from upshift.authoring.decorators import resources, retry, timeout
from upshift.authoring.pipelines import Pipeline, pipeline
from upshift.authoring.steps import Step, step

__all__ = ["Pipeline", "Step", "pipeline", "resources", "retry", "step", "timeout", "unmapped"]
