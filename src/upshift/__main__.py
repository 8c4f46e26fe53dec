"""``python -m upshift`` is ``upshift``."""

from __future__ import annotations

from upshift.cli import main

if __name__ == "__main__":
    main()
