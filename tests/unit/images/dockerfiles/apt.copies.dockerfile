# Rendered by Upshift.
FROM docker.io/library/python@sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa
RUN export DEBIAN_FRONTEND=noninteractive \
 && apt-get -q update \
 && apt-get -q install -y --no-install-recommends git 'libgl1=1.6.0-1~deb12u1+b2' \
 && rm -rf /var/lib/apt/lists/*
LABEL dev.upshift.recipe="sha256:45a60307f0f8427b9b9b1cadd0847874ba65febd538f9ff15a31a38b11b17a98"
