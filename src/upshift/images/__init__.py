"""From :class:`~upshift.config.DockerSettings` to an image that a backend can run.

::

    DockerSettings ── recipes ──▶ Recipe ─┐
                                          ├── locking ── checking ──▶ findings ── building ──▶ Image
    registry or engine ── parents ────────┘                                          │
                                                  containers: a Dockerfile, Debian packages

Nothing is built, and nothing downloaded, before the checks have said yes. ``base`` has the forms,
``preparing`` walks this picture, ``registries`` speaks to image registries, ``uv`` resolves and installs,
``kept`` knows what was built.
"""
