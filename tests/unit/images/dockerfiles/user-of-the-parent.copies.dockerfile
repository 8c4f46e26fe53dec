# Rendered by Upshift.
FROM docker.io/library/python@sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa
USER root
RUN export DEBIAN_FRONTEND=noninteractive \
 && apt-get -q update \
 && apt-get -q install -y --no-install-recommends git \
 && rm -rf /var/lib/apt/lists/*
USER jovyan
LABEL dev.upshift.recipe="sha256:9afd17ce3c9d352cfe445d05fd40a78b87e38adca8b6ec02deb115727c21ac64"
