"""From :class:`~upshift.config.DockerSettings` to an image that a backend can run.

::

    DockerSettings ── recipes ──▶ Recipe ─┐
                                          ├── locking ── checking ──▶ findings ── building ──▶ Image
    registry or engine ── parents ────────┘                                          │
                                                  containers: a Dockerfile, Debian packages

Nothing is built or downloaded before the checks have passed. ``base`` has the records, ``preparing`` walks
this picture, ``registries`` speaks to image registries, ``uv`` resolves and installs, ``built`` lists images,
``environments`` makes environments for steps without an image.
"""
