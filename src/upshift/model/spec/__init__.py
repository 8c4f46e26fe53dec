"""What travels: the task contract and the four records. Plain data, versioned."""

from upshift.model.spec.codec import decode, encode, from_json, to_json
from upshift.model.spec.hardware import Device, Hardware, Launch, Rank, Stack
from upshift.model.spec.task import (
    INLINE_LIMIT,
    VERSION,
    Artifact,
    Code,
    Collected,
    EntryPoint,
    Failure,
    OutputSpec,
    TaskId,
    TaskResult,
    TaskSpec,
    Value,
)
from upshift.model.spec.telemetry import Card, Checkpoints, Framework, Gap, MetricSummary, MetricValue

__all__ = [
    "INLINE_LIMIT",
    "VERSION",
    "Artifact",
    "Card",
    "Checkpoints",
    "Code",
    "Collected",
    "Device",
    "EntryPoint",
    "Failure",
    "Framework",
    "Gap",
    "Hardware",
    "Launch",
    "MetricSummary",
    "MetricValue",
    "OutputSpec",
    "Rank",
    "Stack",
    "TaskId",
    "TaskResult",
    "TaskSpec",
    "Value",
    "decode",
    "encode",
    "from_json",
    "to_json",
]
