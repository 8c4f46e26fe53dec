# Rendered by Upshift.
ARG UPSHIFT_PARENT
FROM ${UPSHIFT_PARENT}
RUN --mount=type=bind,source=.,target=/tmp/upshift --mount=type=cache,id=upshift,target=/tmp/upshift-cache \
    : requirements 8b0bfba66c5ad16d \
 && cd /tmp/upshift \
 && python="$(command -v python3)" \
 && export PIP_CACHE_DIR=/tmp/upshift-cache/pip PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1 PIP_ROOT_USER_ACTION=ignore \
 && export UV_CACHE_DIR=/tmp/upshift-cache/uv UV_LINK_MODE=copy \
 && { uv="$(command -v uv)" || { /tmp/upshift/.uv -V > /dev/null 2>&1 && uv=/tmp/upshift/.uv; } || { "$python" -m pip install -q --target /tmp/upshift-uv uv && uv=/tmp/upshift-uv/bin/uv; }; } \
 && "$uv" pip install --python "$python" --break-system-packages --compile-bytecode -r requirements.txt \
 && rm -rf /tmp/upshift-uv /tmp/uv-*.lock
LABEL dev.upshift.recipe="sha256:c21e0b59b705c9b7f57d27932213108967f1999e726eaac9e1c23f7ef2528ef3"
