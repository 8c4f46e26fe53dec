# Rendered by Upshift.
FROM docker.io/library/python@sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa
ENV PLAIN="1"
ENV QUOTES="it's \"quoted\" `twice`"
ENV DOLLARS="\$HOME \${HOME} \$\$ \\\$HOME"
ENV EMPTY=""
ENV SLASHES="C:\\temp\\"
ARG UPSHIFT_ENVIRONMENT_0
ENV LINES="$UPSHIFT_ENVIRONMENT_0"
ARG UPSHIFT_ENVIRONMENT_1
ENV MORE_LINES="$UPSHIFT_ENVIRONMENT_1"
ENV WORDS=" # ünïcödé = 1 <<EOF "
LABEL dev.upshift.recipe="sha256:23fc773de846e8aebdd325877bd9b488d1055f84feb6dc3d049dd75972515640"
