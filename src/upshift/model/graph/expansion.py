"""How a mapped node becomes tasks: where its length and its items come from.

Four kinds of source can be mapped over:

================================  =====================================  =======================
source                            its length is known                    item *i* is
================================  =====================================  =======================
a collection                      when the pipeline is composed          its *i*-th source
a constant saved by item          when the pipeline is composed          the *i*-th saved item
an output of a mapped node        as soon as that node's is              the output of task *i*
an output of a node of one task   when the task is done                  the *i*-th saved item
================================  =====================================  =======================
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import attrs

from upshift.errors import GraphError
from upshift.model.graph.model import Collection, Constant, FromStep, Node, Source
from upshift.model.graph.order import references


@attrs.frozen(kw_only=True)
class Expansion:
    """What a node waits for, told apart by what each thing holds up.

    Parameters
    ----------
    gates
        Nodes that hold up every task until they end.
    lists
        Mapped parameters whose list is an artifact that was saved by item, each with its source.
    peers
        Mapped nodes that are followed item by item.
    static
        Mapped parameters that are collections, each with its items.
    """

    gates: frozenset[str]
    lists: Mapping[str, Constant | FromStep]
    peers: tuple[str, ...]
    static: Mapping[str, tuple[Source, ...]]


def expansion(node: Node, named: Callable[[str], Node]) -> Expansion:
    """What ``node`` waits for, in a graph whose nodes ``named`` gives.

    Raises
    ------
    GraphError
        The node is mapped over something that has no items.
    """
    gates = set(node.after)
    if node.when is not None:
        gates.add(node.when.node)
    lists: dict[str, Constant | FromStep] = {}
    peers: dict[str, None] = {}
    static: dict[str, tuple[Source, ...]] = {}
    for parameter, source in node.inputs.items():
        if parameter not in node.over:
            gates.update(reference.node for reference in references(source))
        elif isinstance(source, Collection) and source.form != "dict":
            static[parameter] = source.items
        elif isinstance(source, FromStep) and named(source.node).mapped:
            peers[source.node] = None
        elif isinstance(source, FromStep):
            lists[parameter] = source
            gates.add(source.node)
        elif isinstance(source, Constant) and source.artifact.items is not None:
            lists[parameter] = source
        else:
            raise GraphError(
                f"{node.name} is mapped over {parameter}, which is not a list",
                where=node.location,
                fix="Give a list, a tuple or the result of a step, or wrap the value in unmapped(…).",
            )
    missing = [parameter for parameter in node.over if parameter not in node.inputs]
    if missing:
        raise GraphError(
            f"{node.name} is mapped over {missing[0]}, which it does not get", where=node.location
        )
    return Expansion(gates=frozenset(gates), lists=lists, peers=tuple(peers), static=static)
