"""The walk over a graph: which tasks there are, which may start, and what an end means for the others.

A pure state machine. It knows no backend, no store and no clock; it is told what became of tasks, and
says in :attr:`Walk.ready`, :attr:`Walk.changed` and :attr:`Walk.sized` what follows from that::

    start ──► sized: the node has tasks ──► ready ──► began ──► completed ──► gates open, items follow
                                              ▲         │   ├──► failed    ──► what needs it: cancelled
                                              └─ again ─┘   └──► cancelled ──► what needs it: cancelled
    a ``when`` that is false ──► skipped ──► what needs it (data, after, when): skipped

Nothing here takes time that grows with the graph per event: an end tells exactly those who wait for
it, through lists made once. What an end sets off is worked through in an agenda instead of by
recursion, because a chain may have 100,000 nodes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from upshift.engine.tasks import (
    CANCELLED,
    COMPLETED,
    FAILED,
    PENDING,
    RUNNING,
    SKIPPED,
    NodeState,
    TaskState,
    Waiter,
    worse,
)
from upshift.errors import BlobDamaged, BlobMissing
from upshift.model.checks import MOST_TASKS
from upshift.model.graph import FromStep, Graph, Node, expansion, ordered, references, remaining_path
from upshift.model.spec.task import Artifact, Failure

Grow = Callable[[str, Mapping[str, Artifact]], Sequence[Node]]
"""The nodes that follow from what a node has made, by its name and outputs.

Raises ``BlobMissing`` or ``BlobDamaged`` where that cannot be read.
"""

ROUNDS = 3
"""How often what a task needs is made once more, because it was lost, before the task fails."""


class Walk:
    """Walks a graph: which tasks are ready, and what follows from each that ends."""

    def __init__(
        self,
        graph: Graph,
        *,
        truth: Callable[[Artifact], object],  # reads the artifact that a ``when`` refers to
        grow: Grow | None = None,  # None: the graph does not grow
    ) -> None:
        """Raises ``GraphError`` where nodes form a cycle, or one is mapped over what has no items."""
        self._graph = graph
        self._grow = grow
        self._left = 0
        self.nodes: dict[str, NodeState] = {}
        self._add(ordered(graph.nodes))
        self.ready: deque[TaskState] = deque()  # may start, and have not been taken from here
        self.changed: list[TaskState] = []  # have another status; this and the next two the reader empties
        self.sized: list[NodeState] = []  # have their tasks now
        self.closed: list[NodeState] = []  # ended without ever having tasks
        self.worst = COMPLETED  # the worst end of anything so far
        self._truth = truth
        self._redoing = 0
        self._stopped = False
        self._agenda: deque[tuple[Callable[[Any, Any], None], Any, Any]] = deque()

    @property
    def finished(self) -> bool:
        """Whether nothing is left to do."""
        return not self._left and not self._redoing

    @property
    def went_well(self) -> bool:
        """Whether nothing has failed or was cancelled so far."""
        return self.worst in (COMPLETED, SKIPPED)

    def start(self) -> None:
        """Create the tasks whose number is known; those that wait for nothing are ready."""
        self._begin(list(self.nodes.values()))
        self._settle()

    def began(self, task: TaskState) -> None:
        """An attempt of the task runs now."""
        task.status = RUNNING
        self.changed.append(task)

    def again(self, task: TaskState) -> None:
        """The attempt is over, and another one will follow."""
        task.status = PENDING
        self.changed.append(task)

    def completed(self, task: TaskState, outputs: Mapping[str, Artifact], *, degraded: bool = False) -> None:
        """The task has its outputs; the graph grows where more nodes follow from these."""
        following: Sequence[Node] = ()
        if self._grow is not None and task.redone_for is None and task.index is None:
            try:
                following = self._grow(task.node.node.name, outputs)
            except (BlobMissing, BlobDamaged) as error:
                self._not_grown(task, error)
                return
        task.outputs = outputs
        task.failure = None
        task.degraded = degraded
        if degraded:
            task.node.degraded = True
        self._end_task(task, COMPLETED)
        if not self._stopped:
            self._begin(self._add(following))
        self._settle()

    def failed(self, task: TaskState, failure: Failure) -> None:
        """The task has failed, and is not tried again."""
        task.failure = failure
        self._end_task(task, FAILED)
        self._settle()

    def cancelled(self, task: TaskState) -> None:
        """The task was stopped on request."""
        self._end_task(task, CANCELLED)
        self._settle()

    def stop(self) -> None:
        """Start nothing new: wait for what runs, and cancel everything else."""
        self._stopped = True
        self.ready.clear()
        for state in self.nodes.values():
            if state.ended is None or self._redoing:
                self._condemn(state, CANCELLED)
        self._settle()

    def remake(self, task: TaskState, producers: list[TaskState]) -> None:
        """Run ``producers`` once more, because what they made is lost, and then ``task`` again."""
        task.rounds += 1
        task.waiting = len(producers)
        self.again(task)
        for producer in producers:
            self._redo(producer, (self._item_ended, task))
        self._settle()

    # What follows is told about ends, in the order in which they reach the agenda.

    def _settle(self) -> None:
        agenda = self._agenda
        while agenda:
            tell, subject, argument = agenda.popleft()
            tell(subject, argument)

    def _not_grown(self, task: TaskState, error: Exception) -> None:
        """What follows cannot be read: the task runs again, a few times."""
        task.rounds += 1
        if task.rounds > ROUNDS:
            self.failed(task, Failure(reason="infrastructure", message=str(error)))
        else:
            self.again(task)
            self.ready.append(task)

    def _add(self, nodes: Sequence[Node]) -> list[NodeState]:
        """Take these nodes into the walk, each of which comes after those that it needs."""
        ahead = remaining_path(nodes)
        added = []
        for node in nodes:
            state = NodeState(
                node,
                self._graph.definition(node),
                expansion(node, lambda name: self.nodes[name].node),
                order=len(self.nodes),
                remaining=ahead[node.name],
            )
            self.nodes[node.name] = state
            added.append(state)
        self._left += len(added)
        return added

    def _begin(self, states: list[NodeState]) -> None:
        for state in states:
            self._connect(state)
        for state in states:
            # A peer comes earlier in the order; it sized its followers already where it could.
            if not state.unsized and state.length is None and state.ended is None:
                self._size(state)

    def _connect(self, state: NodeState) -> None:
        plan = state.expansion
        for name in plan.gates:
            gate = self.nodes[name]
            if gate.ended is None:
                gate.gated.append(state)
            else:  # it has, before this node was there
                self._agenda.append((self._gate_ended, state, gate))
        state.gates = len(plan.gates)
        sources = {source.node for source in plan.lists.values() if isinstance(source, FromStep)}
        for peer in plan.peers:
            self.nodes[peer].following.append(state)
        state.unsized = len(sources) + len(plan.peers)

    def _size(self, state: NodeState) -> None:
        lengths = self._lengths(state)
        if lengths is None:
            return
        most = max(lengths.values(), default=0)
        if most > MOST_TASKS:
            self._refuse(
                state,
                f"{state} is mapped over {most:,} items, and a step has at most {MOST_TASKS:,} tasks",
                fix="Give each task several items: map over lists of them.",
            )
            return
        if len(set(lengths.values())) > 1:
            differing = " and ".join(f"{name} ({count} items)" for name, count in lengths.items())
            self._refuse(
                state,
                f"{state} is mapped over {differing}: lists of unequal length",
                fix="Map over lists of one length, or wrap what each task is to get whole in unmapped(…).",
            )
            return
        if state.node.mapped:
            state.length = next(iter(lengths.values()))
            state.tasks = [TaskState(state, index) for index in range(state.length)]
        else:
            state.length = 1
            state.tasks = [TaskState(state, None)]
        state.open = state.length
        self.sized.append(state)
        self._await_items(state)
        for follower in state.following:
            follower.unsized -= 1
            if not follower.unsized and follower.ended is None:
                self._agenda.append((self._size_now, follower, None))
        if not state.gates:
            self._open(state)

    def _size_now(self, state: NodeState, _: None) -> None:
        if state.length is None and state.ended is None:
            self._size(state)

    def _lengths(self, state: NodeState) -> dict[str, int] | None:
        lengths = {name: len(items) for name, items in state.expansion.static.items()}
        for name, source in state.expansion.lists.items():
            if isinstance(source, FromStep):
                artifact = self.nodes[source.node].tasks[0].outputs[source.output]
            else:
                artifact = source.artifact
            if artifact.items is None:
                origin = f"the result of {source.node}" if isinstance(source, FromStep) else "a value"
                self._refuse(
                    state,
                    f"{state} is mapped over {name}, {origin} of type {artifact.type}, which is not a list",
                    fix="Return a list or a tuple, or wrap the value in unmapped(…).",
                )
                return None
            lengths[name] = artifact.items
        for name in state.node.over:
            peer = state.node.inputs[name]
            if name not in lengths and isinstance(peer, FromStep):
                length = self.nodes[peer.node].length
                assert length is not None, "a node is sized after its peers"
                lengths[name] = length
        return lengths

    def _await_items(self, state: NodeState) -> None:
        for name in state.expansion.peers:
            peer = self.nodes[name]
            for task, other in zip(state.tasks, peer.tasks, strict=True):
                self._await(task, other)
            if not state.tasks:
                # Without items nothing else says whether the peer was skipped.
                state.gates += 1
                if peer.ended is None:
                    peer.gated.append(state)
                else:
                    self._agenda.append((self._gate_ended, state, peer))
        for items in state.expansion.static.values():
            for task, source in zip(state.tasks, items, strict=True):
                for name in {reference.node for reference in references(source)}:
                    needed = self.nodes[name]
                    if needed.ended == COMPLETED:
                        continue
                    task.waiting += 1
                    if needed.ended is None:
                        needed.awaiting.append(task)
                    else:
                        self._agenda.append((self._item_ended, task, needed.ended))

    def _await(self, task: TaskState, other: TaskState) -> None:
        if other.status == COMPLETED:
            return
        task.waiting += 1
        if other.redone_for is not None:
            other.redone_for.append((self._item_ended, task))
        elif other.status not in (PENDING, RUNNING):
            self._agenda.append((self._item_ended, task, other.status))

    def _open(self, state: NodeState) -> None:
        for task in state.tasks:
            if not task.waiting and task.status == PENDING:
                self._make_ready(task)
        if not state.open and state.ended is None:
            self._end_node(state, state.worst)

    def _make_ready(self, task: TaskState) -> None:
        if self._stopped:
            self._end_task(task, CANCELLED)
        else:
            self.ready.append(task)

    def _item_ended(self, task: TaskState, how: str) -> None:
        if task.status != PENDING:
            return
        if how != COMPLETED:
            self._end_task(task, _inherited(how))
            return
        task.waiting -= 1
        if not task.waiting and not task.node.gates:
            self._make_ready(task)

    def _gate_ended(self, state: NodeState, gate: NodeState) -> None:
        if state.ended is not None:
            return
        assert gate.ended is not None
        if gate.ended != COMPLETED:
            self._condemn(state, _inherited(gate.ended))
            return
        when = state.node.when
        if when is not None and when.node == gate.node.name and not self._allowed(state, when):
            return
        self._pass_gate(state, gate)

    def _pass_gate(self, state: NodeState, gate: NodeState) -> None:
        state.gates -= 1
        name = gate.node.name
        if any(isinstance(s, FromStep) and s.node == name for s in state.expansion.lists.values()):
            state.unsized -= 1
            if not state.unsized:
                self._size(state)
                return
        if not state.gates and state.length is not None:
            self._open(state)

    def _allowed(self, state: NodeState, when: FromStep) -> bool:
        if self.nodes[when.node].node.mapped:
            self._refuse(
                state,
                f".when({when.node}) of {state} is a list of results, one for each item, and not a bool",
                fix="Let a step turn the list into one boolean.",
            )
            return False
        producer = self.nodes[when.node].tasks[0]
        try:
            answer = self._truth(producer.outputs[when.output])
        except (BlobMissing, BlobDamaged) as error:
            if state.rounds >= ROUNDS:
                failure = Failure(reason="infrastructure", message=str(error), where=state.node.location)
                self._condemn(state, FAILED, failure)
            else:
                state.rounds += 1
                self._redo(producer, (self._ask_again, state))
            return False
        if not isinstance(answer, bool):
            kind = producer.outputs[when.output].type
            self._refuse(
                state,
                f".when({when.node}) of {state} is of type {kind}, and not a bool",
                fix=f"Return True or False from {when.node}, for example bool(…).",
            )
            return False
        if not answer:
            self._condemn(state, SKIPPED)
        return answer

    def _ask_again(self, state: NodeState, how: str) -> None:
        assert state.node.when is not None
        if how != COMPLETED:
            self._condemn(state, _inherited(how))
        elif state.ended is None and self._allowed(state, state.node.when):
            self._pass_gate(state, self.nodes[state.node.when.node])

    def _refuse(self, state: NodeState, message: str, *, fix: str) -> None:
        failure = Failure(reason="user-error", message=message, where=state.node.location, fix=fix)
        self._condemn(state, FAILED, failure)

    def _condemn(self, state: NodeState, how: str, failure: Failure | None = None) -> None:
        """Whatever of this node has not started ends in this way."""
        state.gates = 0
        for task in state.tasks:
            if task.status == PENDING:
                task.failure = failure
                self._end_task(task, how)
        if state.ended is not None or state.open:
            return
        if failure is not None and not state.tasks:
            # A failure has to be shown somewhere, and nobody knows yet how many tasks there are.
            lone = TaskState(state, None)
            lone.status, lone.failure = how, failure
            state.tasks = [lone]
            self.changed.append(lone)
        elif state.length is None:
            self.closed.append(state)
        self._end_node(state, how)

    def _end_task(self, task: TaskState, how: str) -> None:
        task.status = how
        self.changed.append(task)
        self.worst = worse(self.worst, how)
        state = task.node
        if task.redone_for is not None:
            self._end_redo(task, how)
            return
        state.open -= 1
        state.worst = worse(state.worst, how)
        for follower in state.following:
            if follower.length is not None and task.index is not None:
                self._agenda.append((self._item_ended, follower.tasks[task.index], how))
        if not state.open and not state.gates:
            self._end_node(state, state.worst)

    def _end_node(self, state: NodeState, how: str) -> None:
        state.ended = how
        state.shared = None
        state.lists.clear()
        self.worst = worse(self.worst, how)
        self._left -= 1
        for other in state.gated:
            self._agenda.append((self._gate_ended, other, state))
        if state.length is None:
            # Its followers will never be told a length.
            self._agenda.extend((self._gate_ended, follower, state) for follower in state.following)
        for task in state.awaiting:
            self._agenda.append((self._item_ended, task, how))

    def _redo(self, producer: TaskState, waiter: Waiter) -> None:
        if producer.redone_for is not None:
            producer.redone_for.append(waiter)
        elif producer.status == COMPLETED and not self._stopped:
            producer.redone_for = [waiter]
            self._redoing += 1
            self.again(producer)
            self.ready.append(producer)
        else:
            self._agenda.append((*waiter, producer.status))

    def _end_redo(self, task: TaskState, how: str) -> None:
        waiters, task.redone_for = task.redone_for, None
        self._redoing -= 1
        state = task.node
        state.collected.clear()
        for other in (*state.gated, *(waiting.node for waiting in state.awaiting)):
            other.shared = None
            other.lists.clear()
        for tell, subject in waiters or ():
            self._agenda.append((tell, subject, how))


def _inherited(how: str) -> str:
    """How something ends that needs something that ended like this."""
    return SKIPPED if how == SKIPPED else CANCELLED
