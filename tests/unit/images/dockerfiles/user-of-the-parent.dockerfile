# Rendered by Upshift.
FROM docker.io/library/python@sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa
USER root
RUN --mount=type=cache,id=upshift-apt,target=/tmp/upshift-apt,sharing=locked \
    export DEBIAN_FRONTEND=noninteractive \
 && apt="apt-get -q -o APT::Keep-Downloaded-Packages=true -o Dir::State::lists=/tmp/upshift-apt/lists -o Dir::Cache::archives=/tmp/upshift-apt/archives" \
 && mkdir -p /tmp/upshift-apt/lists/partial /tmp/upshift-apt/archives/partial \
 && $apt update \
 && $apt install -y --no-install-recommends git
USER jovyan
LABEL dev.upshift.recipe="sha256:9afd17ce3c9d352cfe445d05fd40a78b87e38adca8b6ec02deb115727c21ac64"
