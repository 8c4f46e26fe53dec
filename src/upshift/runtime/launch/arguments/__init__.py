"""What the launchers take, and what becomes of it here.

::

    accelerate.py, torchrun.py   every argument, as of the version that was read: written by a test
    installed.py                 the same of the version that is installed, from its source
    meanings.py                  which of them Upshift does itself, and which mean nothing here, and why
    checking.py                  what a user gave, checked against all of these
"""

from upshift.runtime.launch.arguments.checking import check, refuse_idle

__all__ = ["check", "refuse_idle"]
