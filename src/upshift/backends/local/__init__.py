"""This machine. Tasks are forked by a fork server (:mod:`upshift.worker.serving.forkserver`)."""

from upshift.backends.local.backend import LocalBackend

__all__ = ["LocalBackend"]
