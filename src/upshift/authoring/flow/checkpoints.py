"""``@checkpoint`` of flows: Metaflow's ``current.checkpoint`` over the checkpoints that every step has.

What is saved last is the checkpoint of the task (:mod:`upshift.runtime.step.checkpoint`): the next attempt
finds it in its directory. What ``save`` returns refers to the files, too; as an artifact it takes them along,
so that other steps can load them.
"""

from __future__ import annotations

import json
import os
import shutil
import weakref
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from upshift.authoring.options import StepOptions, checked_keywords
from upshift.authoring.steps import adding
from upshift.errors import SettingsError, UsageError, user_location
from upshift.model.checks import checked_flag, shown
from upshift.runtime.step.checkpoint import checkpoint as own
from upshift.runtime.step.context import current
from upshift.runtime.storage import home_folders

_NAME = "mfchckpt"
_FILES, _ABOUT = "files", "checkpoint.json"
"""What is in the folder of a checkpoint: its files, and what was said of them."""


@checked_keywords("@checkpoint")
def checkpoint(
    function: Any = None,
    /,
    *,
    load_policy: str = "fresh",
    show_card: bool = True,
    temp_dir_root: str | None = None,
) -> Any:
    """Have Metaflow's ``current.checkpoint`` in a step of a flow.

    ``current.checkpoint.save()`` keeps the files of ``current.checkpoint.directory``. The next attempt, also
    of a resumed run, finds them there, and ``current.checkpoint.is_loaded`` is true.

    Parameters
    ----------
    load_policy
        ``"fresh"``: an attempt begins with what an earlier one of its task has saved last; ``"none"``: with
        an empty directory. ``"eager"``, the checkpoints of other runs, is refused.
    show_card
        Of Metaflow's decorator. The report tells of checkpoints anyway, so that it changes nothing.
    temp_dir_root
        Of Metaflow's decorator; refused. The directory is below ``UPSHIFT_HOME``, and goes with the attempt.

    Raises
    ------
    SettingsError
        A value makes no sense.
    """
    if load_policy not in ("fresh", "none"):
        raise SettingsError(
            f"@checkpoint: load_policy={shown(load_policy)} is not supported",
            where=user_location(),
            why="A run begins without checkpoints of others." if load_policy == "eager" else None,
            fix='Use "fresh" or "none". To continue from another run, keep what save() returns as an '
            "artifact, and load() that."
            if load_policy == "eager"
            else 'Use "fresh" or "none".',
        )
    checked_flag("@checkpoint", "show_card", show_card)
    if temp_dir_root is not None:
        raise SettingsError(
            "@checkpoint: temp_dir_root is not supported",
            where=user_location(),
            why="The directory is below UPSHIFT_HOME, and is removed with the attempt.",
            fix="Leave it out.",
        )
    decorate: Any = adding(StepOptions(flow={"checkpoint": {"load": load_policy == "fresh"}}))
    return decorate if function is None else decorate(function)


class Reference(dict[str, Any]):
    """What ``save`` returns: what was said, and under ``files`` the folder with the files.

    That is this attempt's own until the reference is saved as an artifact, and goes with it otherwise. What
    it has is an attribute, too, as Metaflow's ``info`` has it: ``info.metadata``.
    """

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"a checkpoint has no {name!r}, but {', '.join(self)}") from None


class FlowCheckpoint:
    """``upshift.current.checkpoint`` in a step with ``@checkpoint``."""

    def __init__(self, pathspec: str, *, load: bool) -> None:
        self._pathspec = pathspec
        self.directory = str(Path(home_folders.new_folder(), "checkpoint"))
        """The folder whose files are saved, and into which checkpoints are loaded."""
        os.mkdir(self.directory)
        self._saved: list[weakref.ref[Reference]] = []
        self.info: Reference | None = None
        """What was said of the checkpoint that was loaded when the attempt began; None: none was."""
        found = own.latest if load else None
        if found is not None and (found / _ABOUT).exists():
            self.info = self._kept(found)
            self.load(self.info)

    @property
    def is_loaded(self) -> bool:
        """Whether the attempt goes on from a checkpoint."""
        return self.info is not None

    def save(
        self,
        path: str | os.PathLike[str] | None = None,
        name: str = _NAME,
        metadata: Mapping[str, Any] | None = None,
        latest: bool = True,
        storage_format: str = "files",
    ) -> Reference:
        """Save a checkpoint.

        Parameters
        ----------
        path
            A file or a folder; default: :attr:`directory`.
        name, metadata
            What it is called, and what else is to be known of it: anything that JSON can hold.
        latest
            Whether the next attempt goes on from it.
        storage_format
            Of Metaflow; files are saved as they are.

        Returns
        -------
        dict
            ``name``, ``metadata``, ``key``, ``pathspec``, ``attempt``, ``version_id``, ``created_on`` and
            ``files``. Set on ``self`` it is an artifact that takes the files along.

        Raises
        ------
        UsageError
            There is nothing to save, or this is a node that saves beside node 0.
        """
        if current.rank:
            raise UsageError(
                f"node {current.rank} saves a checkpoint, and so would node 0",
                where=user_location(),
                why="A step on several nodes has one checkpoint.",
                fix="Let node 0 save it: if current.parallel.node_index == 0.",
            )
        source = Path(self.directory if path is None else path)
        if not source.exists() or (source.is_dir() and not any(source.iterdir())):
            raise UsageError(
                f"there is nothing to save in {source}",
                where=user_location(),
                fix="Write to current.checkpoint.directory first, or give a path.",
            )
        number = len(self._saved)
        about = {
            "name": name,
            "metadata": dict(metadata or {}),
            "key": f"{self._pathspec}/{current.attempt - 1}/{name}.{number}",
            "pathspec": self._pathspec,
            "attempt": current.attempt - 1,
            "version_id": number,
            "created_on": datetime.now(timezone.utc).isoformat(),
        }
        text = _as_json(about)
        if latest:
            with own.save(alone=True) as folder:
                _copy(source, folder / _FILES)
                (folder / _ABOUT).write_text(text)
            found = own.latest
            assert found is not None
        else:
            found = Path(home_folders.new_folder())
            _copy(source, found / _FILES)
            (found / _ABOUT).write_text(text)
        reference = self._kept(found)
        self._saved.append(weakref.ref(reference))
        return reference

    def list(
        self,
        name: str | None = None,
        task: Any = None,
        attempt: int | None = None,
        full_namespace: bool = False,
    ) -> Sequence[Reference]:
        """The checkpoints that are at hand, the newest first: that which was loaded, and what is referred to.

        Parameters
        ----------
        name, attempt
            Only those with this name, or of this attempt, from 0.
        task, full_namespace
            Of Metaflow; refused, as other tasks have their checkpoints for themselves.

        Raises
        ------
        UsageError
            Those of another task are asked for.
        """
        if task is not None or full_namespace:
            raise UsageError(
                "checkpoints of other tasks cannot be listed",
                where=user_location(),
                fix="Keep what save() returns: self.best = current.checkpoint.save(). Any step can load it.",
            )
        here = [reference for one in reversed(self._saved) if (reference := one()) is not None]
        found = here if self.info is None else [*here, self.info]
        return [
            one
            for one in found
            if name in (None, one["name"]) and (attempt is None or int(attempt) == one["attempt"])
        ]

    def load(self, reference: Mapping[str, Any], path: str | os.PathLike[str] | None = None) -> None:
        """Copy the files of a checkpoint into a folder.

        Parameters
        ----------
        reference
            What ``save`` has returned, here or in an earlier step.
        path
            The folder; default: :attr:`directory`, which then has these files only.

        Raises
        ------
        UsageError
            It is none, or its files are gone.
        """
        files = reference.get("files") if isinstance(reference, Mapping) else None
        if not isinstance(files, Path) or not files.exists():
            raise UsageError(
                f"{shown(reference)} is not a checkpoint that can be loaded",
                where=user_location(),
                fix="Give what save() has returned, in this step, or as an artifact of an earlier one.",
            )
        if path is None:
            shutil.rmtree(self.directory)
        _copy(files, Path(self.directory if path is None else path))

    def _kept(self, found: Path) -> Reference:
        """A reference to a checkpoint, whose files stay as long as it does: the next one replaces it."""
        kept = Path(home_folders.new_folder(), _FILES)
        shutil.copytree(found / _FILES, kept, copy_function=_linked)
        reference = Reference(json.loads((found / _ABOUT).read_text()), files=kept)
        weakref.finalize(reference, shutil.rmtree, kept.parent, ignore_errors=True)
        return reference


def _as_json(about: Mapping[str, Any]) -> str:
    try:
        return json.dumps(about)
    except (TypeError, ValueError) as error:
        raise UsageError(
            f"metadata of a checkpoint cannot be kept: {error}",
            where=user_location(),
            fix="Let it hold texts, numbers, lists and dictionaries.",
        ) from None


def _copy(source: Path, folder: Path) -> None:
    """Copy a file, or what is in a folder, into a folder."""
    if source.is_dir():
        shutil.copytree(source, folder, dirs_exist_ok=True)
    else:
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source, folder)


def _linked(source: str, destination: str) -> None:
    """Link a file that is no longer written into another folder, or copy it."""
    try:
        os.link(source, destination)
    except OSError:  # another file system
        shutil.copy2(source, destination)
