# Rendered by Upshift.
FROM docker.io/library/python@sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa
COPY . /tmp/upshift/
RUN : requirements f820683d15a148dd \
 && cd /tmp/upshift \
 && python="$(command -v python3)" \
 && export PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1 PIP_ROOT_USER_ACTION=ignore \
 && export UV_NO_CACHE=1 \
 && { uv="$(command -v uv)" || { "$python" -m pip install -q --target /tmp/upshift-uv uv && uv=/tmp/upshift-uv/bin/uv; }; } \
 && "$uv" pip install --python "$python" --break-system-packages --compile-bytecode -r requirements.txt \
 && rm -rf /tmp/upshift /tmp/upshift-uv /tmp/uv-*.lock
LABEL dev.upshift.recipe="sha256:d4b021eeae457d15552dc3707511e1fb3efd5e69c7bf862dc71b00e4d4bf36ed"
