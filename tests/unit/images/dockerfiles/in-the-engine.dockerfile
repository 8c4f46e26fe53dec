# Rendered by Upshift.
FROM registry.example.org:5000/ml/base:2
ENV A="1"
LABEL dev.upshift.recipe="sha256:beabd857b1359c22b8c21cc2e4fb6f9921aa766d850bf64a99e3d25012f4ee1f"
