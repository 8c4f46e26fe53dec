# Rendered by Upshift.
FROM docker.io/library/python@sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa
RUN --mount=type=bind,source=.,target=/tmp/upshift --mount=type=cache,id=upshift,target=/tmp/upshift-cache \
    : requirements 8b0bfba66c5ad16d \
 && cd /tmp/upshift \
 && python='/opt/conda/bin/python 3' \
 && export PIP_CACHE_DIR=/tmp/upshift-cache/pip PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1 PIP_ROOT_USER_ACTION=ignore \
 && export UV_CACHE_DIR=/tmp/upshift-cache/uv UV_LINK_MODE=copy \
 && { uv="$(command -v uv)" || { /tmp/upshift/.uv -V > /dev/null 2>&1 && uv=/tmp/upshift/.uv; } || { "$python" -m pip install -q --target /tmp/upshift-uv uv && uv=/tmp/upshift-uv/bin/uv; }; } \
 && "$uv" pip install --python "$python" --compile-bytecode -r requirements.txt \
 && rm -rf /tmp/upshift-uv /tmp/uv-*.lock
LABEL dev.upshift.recipe="sha256:460d43ad56527c9956c26f341493c666f23d0e6ae3dced3c34f5c47a836f1dad"
