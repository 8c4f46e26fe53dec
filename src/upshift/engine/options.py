"""How a run is to be done: :class:`RunOptions`."""

from __future__ import annotations

import attrs


@attrs.frozen(kw_only=True)
class RunOptions:
    """How a run is to be done.

    Parameters
    ----------
    target
        Where steps run that name no place themselves; None: the configuration's default target.
    strict
        Whether a request that cannot be honoured in full is refused; None: as each backend has it.
    reuse
        Whether results of earlier runs may be reused.
    keep_going
        Whether what does not depend on a failed step goes on; None: as the pipeline has it, else no.
    tags
        Words to find the run by.
    debug
        A step, or one task ``train[3]`` of it, that runs in this very process, for a debugger.
    user
        Who runs it; None: the name of the operating system's user.
    """

    target: str | None = None
    strict: bool | None = None
    reuse: bool = True
    keep_going: bool | None = None
    tags: tuple[str, ...] = ()
    debug: str | None = None
    user: str | None = None
