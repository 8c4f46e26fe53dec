# Rendered by Upshift.
ARG UPSHIFT_PARENT
FROM ${UPSHIFT_PARENT}
COPY . /tmp/upshift/
RUN : requirements 8b0bfba66c5ad16d \
 && cd /tmp/upshift \
 && python="$(command -v python3)" \
 && export PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1 PIP_ROOT_USER_ACTION=ignore \
 && export UV_NO_CACHE=1 \
 && { uv="$(command -v uv)" || { "$python" -m pip install -q --target /tmp/upshift-uv uv && uv=/tmp/upshift-uv/bin/uv; }; } \
 && "$uv" pip install --python "$python" --break-system-packages --compile-bytecode -r requirements.txt \
 && rm -rf /tmp/upshift /tmp/upshift-uv /tmp/uv-*.lock
LABEL dev.upshift.recipe="sha256:c21e0b59b705c9b7f57d27932213108967f1999e726eaac9e1c23f7ef2528ef3"
