"""A public name of Upshift that the user's code uses and does not import."""

from __future__ import annotations

import upshift


def advice(error: BaseException) -> str | None:
    """What to write, if an exception is because of such a name; None: it is not."""
    if isinstance(error, NameError) and error.name in upshift.__all__:
        return f"Import it: from upshift import {error.name}"
    return None
