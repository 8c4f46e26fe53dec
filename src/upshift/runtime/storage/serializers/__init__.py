"""Values to bytes and back: one file a kind, and a registry that third parties add to."""

from upshift.runtime.storage.serializers.protocol import Serializer
from upshift.runtime.storage.serializers.registry import (
    names_blobs,
    prepare,
    serializer_named,
    serializers_for,
)

__all__ = ["Serializer", "names_blobs", "prepare", "serializer_named", "serializers_for"]
