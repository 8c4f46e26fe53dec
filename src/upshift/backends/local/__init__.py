"""This machine. Tasks are forked by a fork server (:mod:`upshift.runtime.supervisor.forkserver`)."""
