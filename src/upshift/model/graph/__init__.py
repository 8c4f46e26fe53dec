"""The graph as plain data: nodes, edges, expansion of mapped steps."""

from upshift.model.graph.expansion import Expansion, expansion
from upshift.model.graph.model import Collection, Constant, FromStep, Graph, Node, Source, StepDefinition
from upshift.model.graph.order import needs, ordered, references, remaining_path, taken_by

__all__ = [
    "Collection",
    "Constant",
    "Expansion",
    "FromStep",
    "Graph",
    "Node",
    "Source",
    "StepDefinition",
    "expansion",
    "needs",
    "ordered",
    "references",
    "remaining_path",
    "taken_by",
]
