"""Objects by their keys, in a folder or in a bucket of any cloud: one interface, and :func:`open_objects`."""

from __future__ import annotations

from upshift.errors import ConfigError
from upshift.model.checks import PLACES, local_path, shown
from upshift.runtime.storage.objects.base import Objects


def open_objects(address: str) -> Objects:
    """The objects at an address: a folder, or ``s3://…``, ``gs://…``, ``az://…``.

    What takes time to import is imported for the address that needs it.
    """
    scheme, separator, rest = address.partition("://")
    if separator and scheme == "s3":
        from upshift.runtime.storage.objects.s3 import open_bucket

        return open_bucket(rest)
    if separator and scheme == "gs":
        from upshift.runtime.storage.objects.google import open_google

        return open_google(rest)
    if separator and scheme == "az":
        from upshift.runtime.storage.objects.azure import open_azure

        return open_azure(rest)
    if separator and scheme != "file":
        raise ConfigError(f"a store at {scheme}:// is not supported", where=address, fix=f"Give {PLACES}.")
    from upshift.runtime.storage.objects.folder import FolderObjects

    if not address:
        raise ConfigError("the store's address is empty", fix=f"Give {PLACES}.")
    try:
        return FolderObjects(local_path(address))
    except ValueError as error:
        raise ConfigError(f"the store {shown(address)} {error}", fix="Give a folder.") from None
