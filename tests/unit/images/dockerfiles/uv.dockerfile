# Rendered by Upshift.
FROM docker.io/library/python@sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa
RUN --mount=type=bind,source=.,target=/tmp/upshift --mount=type=cache,id=upshift,target=/tmp/upshift-cache \
    : requirements f820683d15a148dd \
 && cd /tmp/upshift \
 && python="$(command -v python3)" \
 && export PIP_CACHE_DIR=/tmp/upshift-cache/pip PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1 PIP_ROOT_USER_ACTION=ignore \
 && export UV_CACHE_DIR=/tmp/upshift-cache/uv UV_LINK_MODE=copy \
 && { uv="$(command -v uv)" || { /tmp/upshift/.uv -V > /dev/null 2>&1 && uv=/tmp/upshift/.uv; } || { "$python" -m pip install -q --target /tmp/upshift-uv uv && uv=/tmp/upshift-uv/bin/uv; }; } \
 && "$uv" pip install --python "$python" --break-system-packages --compile-bytecode -r requirements.txt \
 && rm -rf /tmp/upshift-uv /tmp/uv-*.lock
LABEL dev.upshift.recipe="sha256:d4b021eeae457d15552dc3707511e1fb3efd5e69c7bf862dc71b00e4d4bf36ed"
