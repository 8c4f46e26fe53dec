# Rendered by Upshift.
FROM docker.io/library/python@sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa
COPY . /tmp/upshift/
RUN : requirements 3d92504e3b47686e \
 && cd /tmp/upshift \
 && python="$(command -v python3)" \
 && export PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1 PIP_ROOT_USER_ACTION=ignore \
 && export UV_NO_CACHE=1 \
 && { uv="$(command -v uv)" || { "$python" -m pip install -q --target /tmp/upshift-uv uv && uv=/tmp/upshift-uv/bin/uv; }; } \
 && "$uv" pip install --python "$python" --break-system-packages --compile-bytecode -r requirements.txt \
 && rm -rf /tmp/upshift /tmp/upshift-uv /tmp/uv-*.lock
LABEL dev.upshift.recipe="sha256:e70a8eacb1bdd221b4aa5c5a29444c7a51c3bfae65bea5ac95063ddcb0e71228"
