# Rendered by Upshift.
FROM docker.io/library/python@sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa
RUN --mount=type=cache,id=upshift-apt,target=/tmp/upshift-apt,sharing=locked \
    export DEBIAN_FRONTEND=noninteractive \
 && apt="apt-get -q -o APT::Keep-Downloaded-Packages=true -o Dir::State::lists=/tmp/upshift-apt/lists -o Dir::Cache::archives=/tmp/upshift-apt/archives" \
 && mkdir -p /tmp/upshift-apt/lists/partial /tmp/upshift-apt/archives/partial \
 && $apt update \
 && $apt install -y --no-install-recommends git 'libgl1=1.6.0-1~deb12u1+b2'
LABEL dev.upshift.recipe="sha256:45a60307f0f8427b9b9b1cadd0847874ba65febd538f9ff15a31a38b11b17a98"
