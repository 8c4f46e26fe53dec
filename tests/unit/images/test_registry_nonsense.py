"""A registry may say anything: what is invalid is an error in words, and never ours."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from registry_kit import image, open_registries

from stand_in_registry import OCI_CONFIG, OCI_MANIFEST, StandInRegistry, digest_of
from upshift.errors import ImageError
from upshift.images.base import Reference, is_digest
from upshift.images.registries.answers import chosen, configuration_of, document_of, is_index, parent_of
from upshift.images.registries.client import Registries

AMD = "linux/amd64"
REFERENCE = Reference.parse("registry.example.org/base:1")
WORDS = (
    "mediaType config manifests layers digest size platform os architecture variant schemaVersion "
    "Env Labels User Entrypoint WorkingDir"
)
KEYS = st.sampled_from(WORDS.split())
VALUES = st.sampled_from(
    [None, 1, -1.5, True, "", "linux", "amd64", "A=b", OCI_MANIFEST, OCI_CONFIG, digest_of(b"")]
)
DOCUMENTS = st.recursive(
    VALUES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=5),
    max_leaves=15,
)
OBJECTS = st.dictionaries(KEYS, DOCUMENTS, max_size=6)
CONFIGURATIONS = st.fixed_dictionaries(
    {"os": st.just("linux"), "architecture": st.just("amd64"), "config": OBJECTS | DOCUMENTS}
)


def in_words(function: Callable[..., Any], *arguments: Any) -> Any:
    """What it returns, or None after an error in words; any other error fails."""
    try:
        return function(*arguments)
    except ImageError as error:
        return None if error.what and error.why and error.fix else pytest.fail(f"no words: {error}")


@settings(max_examples=300, suppress_health_check=[HealthCheck.too_slow])
@given(manifest=OBJECTS)
def test_manifests_of_any_form_are_read_or_refused(manifest: dict[str, Any]) -> None:
    if is_index(manifest):
        assert is_digest(in_words(chosen, REFERENCE, manifest, AMD) or digest_of(b""))
    else:
        in_words(configuration_of, REFERENCE, manifest)


@settings(max_examples=300, suppress_health_check=[HealthCheck.too_slow])
@given(manifest=OBJECTS, config=CONFIGURATIONS | OBJECTS)
def test_configurations_of_any_form_are_read_or_refused(
    manifest: dict[str, Any], config: dict[str, Any]
) -> None:
    parent = in_words(parent_of, REFERENCE, digest_of(b""), AMD, manifest, config)
    if parent is not None:
        texts = [*parent.environment.items(), *parent.labels.items(), (parent.user or "",)]
        assert all(isinstance(text, str) for several in texts for text in several)
        assert isinstance(parent.bytes, int)
        assert all(map(is_digest, parent.layers))


@pytest.mark.parametrize("content", [b"", b"[]", b"7", b"\xff", b"{", b"[" * 100_000, b"NaN"])
def test_what_is_no_document_is_refused(content: bytes) -> None:
    with pytest.raises(ImageError, match="cannot be read"):
        document_of("base:1 cannot be read", REFERENCE, content)


@pytest.mark.parametrize("address", ["http://[", "http://host:x/", "ftp://host/", "mailto:a", "//[/"])
def test_addresses_that_are_none_are_refused(
    address: str, registry: StandInRegistry, registries: Registries
) -> None:
    base = image(registry.name, "base:1")
    registry.goes_wrong("GET", "/blobs/", status=307, headers={"Location": address})
    with pytest.raises(ImageError, match="cannot be read") as caught:
        list(registries.blob(base, digest_of(b"")))
    assert caught.value.fix == "Ask who runs the registry."
    registry.goes_wrong("POST", "/uploads/", status=202, headers={"Location": address})
    with pytest.raises(ImageError, match="nothing can be pushed") as caught:
        registries.upload_blob(base, b"", digest_of(b""))
    assert f"{registry.name} gives {address!r} as an address" == caught.value.why


@pytest.mark.parametrize(
    "challenge",
    [
        'Bearer realm="http://["',
        'Bearer realm=""',
        "Bearer",
        "Negotiate",
        "",
        'Bearer realm="x:y",realm=7',
        "Basic",
    ],
)
def test_challenges_of_any_form_end_in_words(
    challenge: str, registry: StandInRegistry, registries: Registries
) -> None:
    registry.goes_wrong("GET", "/v2/", times=99, status=401, headers={"WWW-Authenticate": challenge})
    with pytest.raises(ImageError, match="cannot be read") as caught:
        registries.parent(image(registry.name, "base:1"), AMD)
    assert caught.value.why and caught.value.fix


@pytest.mark.parametrize(
    "errors",
    [
        '{"errors": []}',
        '{"errors": [7]}',
        '{"errors": {"a": 1}}',
        "[" * 50_000,
        '{"errors": [{"message": {}}]}',
    ],
)
def test_what_a_registry_says_of_an_error_may_be_anything(
    errors: str, registry: StandInRegistry, registries: Registries
) -> None:
    registry.goes_wrong("HEAD", "/manifests/", times=9, status=418, body=errors.encode())
    registry.goes_wrong("GET", "/tags/", times=9, status=418, body=errors.encode())
    for call in (registries.digest, registries.tags):
        with pytest.raises(ImageError) as caught:
            call(image(registry.name, "base:1"))
        assert "answers 418" in str(caught.value.why)


@pytest.mark.parametrize("tags", [None, 7, {"a": "b"}, [7, None, "good"], "text"])
def test_tags_of_any_form_are_read_or_left_out(
    tags: Any, registry: StandInRegistry, registries: Registries
) -> None:
    registry.goes_wrong("GET", "/tags/", status=200, body=json.dumps({"tags": tags}).encode())
    assert registries.tags(image(registry.name, "base")) == (["good"] if isinstance(tags, list) else [])


@pytest.mark.parametrize("proxy", ["http://[", "http://host:port", "nonsense://proxy:1", "http://"])
def test_a_proxy_that_makes_no_sense_is_named(proxy: str) -> None:
    with open_registries(environ={"HTTPS_PROXY": proxy}) as registries, pytest.raises(ImageError) as caught:
        registries.digest(REFERENCE)
    assert "proxy" in str(caught.value.why)
    assert "HTTPS_PROXY" in str(caught.value.fix)
