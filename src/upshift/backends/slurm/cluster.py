"""A cluster of Slurm through its commands: ``sbatch``, ``squeue``, ``scontrol`` and ``scancel``.

``squeue --states=all`` and ``scontrol`` know a job for MinJobAge after its end (slurm.conf(5); 300 s unless a
site says otherwise), and are asked every few seconds. ``sacct`` lags, and may be off: it is asked only for
what they do not know, and believed only about jobs that it knows to have ended.

Where a target names a login node, its commands run there, through ``ssh``. Connections are shared
(ssh_config(5), ControlMaster), so that a command costs one round trip. Variables go in on standard input,
before a script: not on a command line, which others see, and without asking the server to accept them.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import subprocess
import tempfile
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import attrs

from upshift.backends.base import Ask, Finding, Offer
from upshift.backends.scheduler import Full, Launch, NotNow, State
from upshift.backends.slurm.script import Containers, environment, ranges, script_of
from upshift.backends.slurm.site import Site, chosen, findings, offer, read_site, state_of
from upshift.errors import BackendError, RequestRefused
from upshift.model.configuration import home
from upshift.model.settings.slurm import minutes_of
from upshift.runtime.launch import seats
from upshift.runtime.supervisor.protocol import AT_ONCE, WITH_GRACE

PATIENCE = 60.0
"""Seconds for one command."""
ACCOUNTS = 10.0
"""Seconds for ``sacct``, without which it goes on."""
SINCE = "now-30days"
"""When jobs began that ``sacct`` looks for by name."""


class Refused(BackendError):
    """What Slurm says to a job that it does not take."""

    def __init__(self, said: str) -> None:
        super().__init__(f"Slurm refuses it: {said}")
        self.said = said


WEEK = 7 * 24 * 60
"""Minutes."""
SHARE = 20.0
"""Seconds for which an element of an array may begin further tasks, at most."""
FULL = re.compile(
    r"(?i)(QOS|Assoc)\w*MaxSubmitJob\w*|temporarily unable to accept job|job queue full|job submit limit"
)
"""What ``sbatch`` says where a limit on the number of jobs is reached."""
SILENT = re.compile(
    r"(?i)unable to contact slurm controller|socket timed out|connection (refused|timed out)|communication"
    r"|zero bytes|slurm_persist|backup controller|controller .*standby|protocol authentication"
)
"""What commands say where the controller does not answer."""
SEAT = {
    seats.NODE: "$SLURM_NODEID",
    seats.MAIN: "$SLURM_LAUNCH_NODE_IPADDR",
    seats.NAME: "$SLURMD_NODENAME",
}
"""What srun tells its tasks of where they are: srun(1), "OUTPUT ENVIRONMENT VARIABLES"."""
NOISE = re.compile(
    r"srun: (?!error: )|srun: error: \S+: tasks? \S+ (Killed|Terminated)|slurmstepd\S*: error: \*\*\*"
)
"""What srun and its daemons print as they end the tasks of others because one has ended."""
_SSH_FAILED = 255
"""What ``ssh`` ends with where it is ssh that failed: ssh(1), "EXIT STATUS"."""
_CONNECT = 15
"""Seconds for a connection."""
_KEPT = 120
"""Seconds that a connection is kept for the next command."""
_END_OF_VARIABLES = "#"
_READ_VARIABLES = (
    f'while IFS= read -r line && [ "$line" != "{_END_OF_VARIABLES}" ]; do eval "$line"; done; exec '
)
_REFUSED = re.compile(
    r"(?i)permission denied|host key verification failed|remote host identification has changed"
    r"|could not resolve hostname|bad configuration option|too many authentication failures|no such identity"
)
"""What ssh says where it would say the same again."""
_NO_COMMAND = 127
"""What a shell ends with that does not find a command."""
_ELEMENT = re.compile(r"\d+_\d+")


@attrs.define(eq=False)
class Slurm:
    """A cluster through its commands, which find it by the environment of this process as it is now."""

    title: str = "Slurm"
    noise: re.Pattern[str] = NOISE
    seat: Mapping[str, str] = attrs.field(factory=lambda: dict(SEAT), repr=False)
    signals: bool = True
    dense: bool = False
    containers: Containers | None = None  # what steps with an image run in
    login: Login | None = None  # where its commands run; None: on this machine
    _environment: Mapping[str, str] = attrs.field(factory=lambda: environment(), repr=False)
    _accounting: bool = attrs.field(init=False, default=True)  # whether sacct is worth asking

    def offer(self, ask: Ask, settings: Mapping[str, Any]) -> Offer:
        """What ``scontrol`` says there is, and what ``sbatch --test-only`` says of it."""
        if ask.avoid is not None:
            with contextlib.suppress(AttributeError):  # it has changed since
                del self.site
        found = offer(ask.request, settings, self.site, avoid=ask.avoid or ())
        if found.granted is not None and not found.shortfalls:
            self._test(
                Launch(
                    name="test",
                    comment="",
                    command=("true",),
                    granted=found.granted,
                    settings=settings,
                    timeout=ask.timeout,
                )
            )
        return found

    def findings(self, settings: Mapping[str, Any]) -> Iterator[Finding]:
        """What ``sinfo`` and ``squeue`` would show, and whether ``sbatch`` would take a job."""
        site = self.site
        where = "" if self.login is None else f", through ssh {self.login.address}"
        yield Finding(name="access", text=f"{self._said('sinfo', '--version').strip()} answers{where}")
        yield from findings(settings, site)
        jobs = Counter(self._quietly("squeue", "--noheader", "--array", "--format=%T").split())
        waiting, total = jobs["PENDING"], jobs.total()
        yield Finding(name="jobs", text=f"{total - waiting} under way, {waiting} waiting, of all users")
        self.offer(Ask(), settings)
        yield Finding(name="submission", text="sbatch --test-only would take a job")

    @cached_property
    def largest(self) -> int:
        """Elements of an array are numbered below this: slurm.conf(5), "MaxArraySize"."""
        found = re.search(
            r"^MaxArraySize\s*=\s*(\d+)", self._said("scontrol", "show", "config"), re.MULTILINE
        )
        return max(1, int(found[1])) if found else 1001

    def share(self, launch: Launch) -> float:
        """A small part of its time limit, which is longer than the step's own timeout by ``ROOM``."""
        if launch.settings.get("time"):
            return min(SHARE, float(minutes_of(launch.settings["time"])))
        return SHARE if launch.timeout is not None else SHARE / 2

    def withdraw(self, ids: Collection[str]) -> None:
        """One command, however many they are.

        scancel 22.05 with a filter, such as ``--state``, takes back all of an array that waits. Without one
        it would end an element that runs, too: none of these is to run anything.
        """
        by_array: dict[str, list[int]] = {}
        for id in ids:
            base, _, number = id.partition("_")
            by_array.setdefault(base, []).append(int(number))
        those = [f"{base}_[{ranges(numbers)}]" for base, numbers in by_array.items()]
        self._quietly("scancel", *those)

    def for_engine(self, settings: Mapping[str, Any]) -> Mapping[str, Any]:
        """With a time limit: a week, or what its partitions allow."""
        if "time" in settings:
            return settings
        limits = [p.most_minutes for p in chosen(settings, self.site) if p.most_minutes is not None]
        return {**settings, "time": f"{min([WEEK, *limits])}m"}

    def render(self, launch: Launch) -> str:
        """As :func:`.script.script_of`."""
        return script_of(launch, self.containers)

    @cached_property
    def site(self) -> Site:
        """The cluster, looked at once."""
        try:
            nodes = self._said("scontrol", "--oneliner", "show", "nodes")
            return read_site(nodes, self._said("scontrol", "--oneliner", "show", "partitions"))
        except NotNow as error:
            raise BackendError(str(error), fix="See what it says: sinfo") from None

    def _test(self, launch: Launch) -> None:
        try:
            self._said(
                "sbatch",
                "--test-only",
                script=self.render(launch),
            )
        except Full:  # for now: jobs wait until others have ended
            pass
        except NotNow as error:
            raise BackendError(str(error), fix="See what it says: sinfo") from None
        except Refused as error:
            raise RequestRefused(
                f"Slurm would not take a job like this: {error.said}",
                why="sbatch --test-only says so.",
                fix="Options of the target and SlurmSettings say where and as whom jobs run: see sinfo, and "
                "sacctmgr show assoc.",
            ) from None

    def submit(self, script: str, more: Mapping[str, str]) -> str:
        """The id is in the last line: a site may have printed its own before."""
        said = self._said(
            "sbatch",
            "--parsable",
            script=script,
            more=more,
        )
        ids = re.findall(r"^(\d+)(?:;\S+)?$", said, re.MULTILINE)
        if not ids:
            raise BackendError(f"sbatch gave no job id: {said.strip()}")
        return str(ids[-1])

    def states(self, ids: Collection[str]) -> Mapping[str, State]:
        """One question, however many they are."""
        bases = {id.partition("_")[0] for id in ids}
        found = {id: state for id, _, state in self._listed(f"--jobs={','.join(sorted(bases))}")}
        # Elements that were cancelled while they waited are one line, whose id may be that of the array.
        whole = {id.partition("_")[0]: state for id, state in found.items() if not _ELEMENT.fullmatch(id)}
        states = {id: found.get(id, whole.get(id.partition("_")[0])) for id in ids}
        forgotten = sorted({id.partition("_")[0] for id, state in states.items() if state is None})
        ended = {id: state for id, _, state in self._accounted(forgotten, "--jobs=")}
        return {id: state for id in ids if (state := states[id] or ended.get(id)) is not None}

    def find(self, names: Collection[str]) -> Mapping[str, str]:
        """The newest job of each name."""
        found = self._listed("--me", f"--name={','.join(sorted(names))}")
        forgotten = sorted(set(names) - {name for _, name, _ in found})
        found += self._accounted(forgotten, f"--starttime={SINCE}", "--name=")
        ids = {(int(id.partition("_")[0]), name) for id, name, _ in found}
        return {name: str(id) for id, name in sorted(ids)}

    def stop(self, ids: Collection[str], *, grace: bool, kill: bool = False) -> None:
        """What waits is withdrawn; the supervisor, which is the batch process, is sent its own signals."""
        jobs = sorted(ids)
        if not kill:
            alone = [id for id in jobs if "_" not in id]
            if alone:
                self._quietly("scancel", "--state=PENDING", *alone)
            self._quietly(
                "scancel", "--batch", f"--signal={(WITH_GRACE if grace else AT_ONCE).name[3:]}", *jobs
            )
        else:
            self._quietly("scancel", *jobs)

    def words(self, id: str) -> str | None:
        """Exit code and reason, as ``scontrol`` has them."""
        said = self._quietly("scontrol", "--oneliner", "show", "job", id)
        record = dict(re.findall(r"(\w+)=(\S*)", said))
        if not record:
            return None
        code, _, signal = record.get("ExitCode", "").partition(":")
        how = f"signal {signal}" if signal not in ("", "0") else f"exit code {code}"
        reason = record.get("Reason", "None")
        return how + (f", {reason}" if reason != "None" else "")

    def _listed(self, *which: str) -> list[tuple[str, str, State]]:
        try:
            form = "--format=%i|%j|%T|%N|%r"
            said = self._said("squeue", "--states=all", "--noheader", "--array", form, *which)
        except BackendError as error:
            if "Invalid job id" in error.in_short:  # the only one that was asked for is known no more
                return []
            raise NotNow(f"{self.title} does not answer: {error.in_short}") from None
        rows = (line.split("|", 4) for line in said.splitlines())
        return [
            (row[0], row[1], state_of(row[0], *row[2:]))
            for row in rows
            if len(row) == 5 and re.match(r"\d+(_|$)", row[0])
        ]

    def _accounted(self, those: Sequence[str], *which: str) -> list[tuple[str, str, State]]:
        """Jobs that have ended as ``sacct`` knows them; none where there is no accounting, or it is away."""
        if not those or not self._accounting:
            return []
        form = "--format=JobID,JobName,State,NodeList,Reason"
        options = ["--noheader", "--parsable2", "--allocations", form, *which[:-1]]
        try:
            answer = self._run(["sacct", *options, which[-1] + ",".join(those)], patience=ACCOUNTS)
        except (BackendError, NotNow):
            return []
        if answer.returncode:
            self._accounting = "disabled" not in answer.stderr  # "Slurm accounting storage is disabled"
            return []
        rows = [line.split("|", 4) for line in answer.stdout.splitlines()]
        found = [(row[0], row[1], state_of(row[0], *row[2:])) for row in rows if len(row) == 5]
        # What has only begun there may have ended since: that comes late.
        return [one for one in found if one[2].phase == "ended"]

    def _said(self, program: str, *arguments: str, script: str | None = None, more: Any = None) -> str:
        """What a command prints.

        Raises
        ------
        BackendError
            It is not there, or refuses.
        NotNow
            The controller does not answer, or takes no more jobs for now.
        """
        answer = self._run([program, *arguments], script=script, more=more)
        if answer.returncode == 0:
            return answer.stdout
        complaint = " ".join(_complaints(answer.stderr)) or f"{program} ended with {answer.returncode}"
        if "configuration source" in complaint:
            raise BackendError(
                "Slurm's commands are here, and know no cluster",
                why=complaint,
                fix="Run this on a login node of the cluster, or set SLURM_CONF to its slurm.conf.",
            )
        if SILENT.search(complaint):
            raise NotNow(f"Slurm does not answer: {complaint}")
        if FULL.search(complaint):
            raise Full(f"Slurm takes no more jobs for now: {complaint}")
        raise Refused(complaint) if script is not None else BackendError(complaint)

    def _quietly(self, program: str, *arguments: str) -> str:
        """What a command prints, whatever it thinks of the jobs: some may have ended.

        Raises
        ------
        NotNow
            The controller does not answer.
        """
        answer = self._run([program, *arguments])
        if answer.returncode and SILENT.search(answer.stderr):
            raise NotNow(f"Slurm does not answer: {' '.join(_complaints(answer.stderr))}")
        return answer.stdout

    def _run(
        self,
        command: Sequence[str],
        *,
        script: str | None = None,
        more: Mapping[str, str] | None = None,
        patience: float | None = None,
    ) -> subprocess.CompletedProcess[str]:
        patience = PATIENCE if patience is None else patience
        login, given, known = self.login, more or {}, command
        if login is not None:
            # Of variables of this machine the login node gets none but those of the job.
            script = login.input({"UPSHIFT_HOME": str(home()), **given} if given else {}, script)
            command, given = login.command(command), {}
        try:
            answer = subprocess.run(
                command,
                input=script,
                stdin=subprocess.DEVNULL if script is None else None,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=patience,
                env={**self._environment, **given},
                start_new_session=True,  # whoever interrupts the engine does not interrupt a submission
            )
            if login is None:
                return answer
            if answer.returncode == _SSH_FAILED:
                said = " ".join(_complaints(answer.stderr)) or "the connection was lost."
                raise login.refusal(said) or NotNow(f"ssh {login.address} does not answer: {said}")
            if answer.returncode == _NO_COMMAND and known[0] in answer.stderr:
                raise BackendError(
                    f"{known[0]} is not on the PATH of {login.address}",
                    why="Slurm is driven by its own commands, as a login shell there finds them.",
                    fix="Name a login node of the cluster: ssh = …",
                )
            return answer
        except FileNotFoundError:
            raise BackendError(
                f"{command[0]} is not on the PATH",
                why="Steps are given to Slurm through its own commands.",
                fix="Run this where jobs are submitted, on a login node of the cluster.",
            ) from None
        except subprocess.TimeoutExpired as error:
            said = " ".join(_complaints((error.stderr or b"").decode(errors="replace")))
            if FULL.search(said):  # sbatch tries again by itself for two minutes
                raise Full(f"Slurm takes no more jobs for now: {said}") from None
            raise NotNow(f"Slurm does not answer: {command[0]} took more than {patience:g} s") from None


def _complaints(text: str) -> Iterator[str]:
    """What is said of the matter in what a command of Slurm's writes to its standard error."""
    for line in text.splitlines():
        said = re.sub(
            r"^(sbatch|squeue|scontrol|scancel|slurm_load_\w+|allocation failure)(:? error)?:\s*", "", line
        )
        said = said.removeprefix("error: ").removeprefix("Batch job submission failed: ").strip()
        if said:
            yield said if said.endswith((".", ":")) else f"{said}."


@attrs.frozen
class Login:
    """A login node that is reached through ``ssh``."""

    address: str  # as ssh takes it: "ann@login.example.org", or a Host of ~/.ssh/config

    def command(self, command: Sequence[str]) -> list[str]:
        """What runs a command there, which finds what a login shell finds."""
        options = {
            "BatchMode": "yes",
            "ConnectTimeout": _CONNECT,
            "ServerAliveInterval": _CONNECT,
            "ControlMaster": "auto",
            "ControlPersist": _KEPT,
            "ControlPath": f"{_connections()}/%C",
        }
        said = [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
        inside = shlex.join(["sh", "-lc", _READ_VARIABLES + shlex.join(command)])
        return ["ssh", "-T", *said, "--", self.address, inside]

    def input(self, more: Mapping[str, str], script: str | None) -> str:
        """Its standard input."""
        for name, value in more.items():
            if "\n" in value:
                raise BackendError(f"the value of {name} has several lines, which do not go through ssh")
        lines = [f"export {name}={shlex.quote(value)}\n" for name, value in more.items()]
        return "".join([*lines, f"{_END_OF_VARIABLES}\n", script or ""])

    def refusal(self, said: str) -> BackendError | None:
        """The error for what ssh says; None: it may be different in a second."""
        if not _REFUSED.search(said):
            return None
        asks = "Permission denied" in said
        return BackendError(
            f"ssh {self.address} does not let Upshift in" if asks else f"ssh {self.address} fails",
            why=said,
            fix="Nobody answers a question for a password or a new host here: set up a key (ssh-copy-id) or "
            f"an agent, and see that this works: ssh -o BatchMode=yes {self.address} sinfo",
        )


def _connections() -> str:
    """A folder of this user's for the sockets of connections, whose paths are short (unix(7): 108 bytes)."""
    folder = os.path.join(tempfile.gettempdir(), f"upshift-ssh-{os.getuid()}")
    os.makedirs(folder, mode=0o700, exist_ok=True)
    found = os.lstat(folder)
    if found.st_uid != os.getuid() or found.st_mode & 0o077 or not os.path.isdir(folder):
        raise BackendError(
            f"{folder} is not a folder of your own, which nobody else may enter", fix="Remove it."
        )
    return folder
