"""Data that is named and never copied: its name and its key are the content."""

from __future__ import annotations

import json
from collections.abc import Sequence

from upshift.runtime.storage.digest import Bytes
from upshift.runtime.storage.external import External
from upshift.runtime.storage.serializers.protocol import Serializer
from upshift.runtime.storage.store import Store

_MARK = b"external\n"


class ExternalSerializer(Serializer):
    """Exactly :class:`~upshift.runtime.storage.external.External`."""

    name = "external"

    def accepts(self, value: object) -> bool:
        return type(value) is External

    def dump(self, value: object, store: Store) -> Sequence[Bytes]:
        assert isinstance(value, External)
        fields = {"uri": value.uri, "key": value.key(), "version": value.version}
        return (_MARK, json.dumps(fields, sort_keys=True, separators=(",", ":")).encode())

    def load(self, content: memoryview, store: Store) -> object:
        fields = json.loads(bytes(content[len(_MARK) :]))
        return External(fields["uri"], fields["version"])
