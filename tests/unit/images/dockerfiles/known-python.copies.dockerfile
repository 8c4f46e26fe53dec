# Rendered by Upshift.
FROM docker.io/library/python@sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa
COPY . /tmp/upshift/
RUN : requirements 8b0bfba66c5ad16d \
 && cd /tmp/upshift \
 && python='/opt/conda/bin/python 3' \
 && export PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1 PIP_ROOT_USER_ACTION=ignore \
 && export UV_NO_CACHE=1 \
 && { uv="$(command -v uv)" || { "$python" -m pip install -q --target /tmp/upshift-uv uv && uv=/tmp/upshift-uv/bin/uv; }; } \
 && "$uv" pip install --python "$python" --compile-bytecode -r requirements.txt \
 && rm -rf /tmp/upshift /tmp/upshift-uv /tmp/uv-*.lock
LABEL dev.upshift.recipe="sha256:460d43ad56527c9956c26f341493c666f23d0e6ae3dced3c34f5c47a836f1dad"
