# Rendered by Upshift.
FROM docker.io/library/python@sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa
USER root
RUN --mount=type=bind,source=.,target=/tmp/upshift --mount=type=cache,id=upshift,target=/tmp/upshift-cache \
    : requirements 8b0bfba66c5ad16d \
 && cd /tmp/upshift \
 && python="$(command -v python3)" \
 && export PIP_CACHE_DIR=/tmp/upshift-cache/pip PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1 PIP_ROOT_USER_ACTION=ignore \
 && export UV_CACHE_DIR=/tmp/upshift-cache/uv UV_LINK_MODE=copy \
 && { uv="$(command -v uv)" || { /tmp/upshift/.uv -V > /dev/null 2>&1 && uv=/tmp/upshift/.uv; } || { "$python" -m pip install -q --target /tmp/upshift-uv uv && uv=/tmp/upshift-uv/bin/uv; }; } \
 && "$uv" pip install --python "$python" --break-system-packages --compile-bytecode -r requirements.txt \
 && rm -rf /tmp/upshift-uv /tmp/uv-*.lock
RUN id ml
USER ml:staff
LABEL dev.upshift.recipe="sha256:ac0372f7938a36a3617e3f56d0390f59294f246a57841cc84b3cb648d90a8404"
