# Rendered by Upshift.
FROM docker.io/library/python@sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa
USER root
COPY . /tmp/upshift/
RUN : requirements 8b0bfba66c5ad16d \
 && cd /tmp/upshift \
 && python="$(command -v python3)" \
 && export PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1 PIP_ROOT_USER_ACTION=ignore \
 && export UV_NO_CACHE=1 \
 && { uv="$(command -v uv)" || { "$python" -m pip install -q --target /tmp/upshift-uv uv && uv=/tmp/upshift-uv/bin/uv; }; } \
 && "$uv" pip install --python "$python" --break-system-packages --compile-bytecode -r requirements.txt \
 && rm -rf /tmp/upshift /tmp/upshift-uv /tmp/uv-*.lock
RUN id ml
USER ml:staff
LABEL dev.upshift.recipe="sha256:ac0372f7938a36a3617e3f56d0390f59294f246a57841cc84b3cb648d90a8404"
