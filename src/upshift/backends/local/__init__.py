"""This machine. Tasks are forked by a fork server (:mod:`upshift.runtime.supervisor.serving.forkserver`)."""

from upshift.backends.local.backend import LocalBackend

__all__ = ["LocalBackend"]
