# Rendered by Upshift.
FROM docker.io/library/python@sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa
COPY . /tmp/upshift/
RUN : requirements 8b0bfba66c5ad16d \
 && cd /tmp/upshift \
 && python="$(command -v python3)" \
 && export PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1 PIP_ROOT_USER_ACTION=ignore PIP_BREAK_SYSTEM_PACKAGES=1 \
 && "$python" -m pip install --compile -r requirements.txt '--index-url=https://x.example/a b?c=$d&e' --no-deps '--it'"'"'s' \
 && rm -rf /tmp/upshift
LABEL dev.upshift.recipe="sha256:d49a8ed5e71187a5c8bea7fc4851384b69e7ab867a3b3c91a796f9a2951fbff8"
