"""What may be found to speak against an image and be overruled by its user: names for
``DockerSettings(accept=…)``.
"""

from __future__ import annotations

ACCEPTABLE = {
    "driver-too-old": "the CUDA of the image needs a newer driver",
    "image-refuses-driver": "the image says itself (NVIDIA_REQUIRE_…) that it does not start with the driver",
    "no-cuda": "a GPU of NVIDIA is asked for, and there is no CUDA",
    "no-kernels": "PyTorch or CUDA does not know the GPU",
    "no-launcher": "what a step of several processes is started with is not installed",
    "no-neuron": "a device of AWS Neuron is asked for, and there is no Neuron SDK",
    "no-rocm": "a GPU of AMD is asked for, and there is no ROCm",
    "other-platform": "the image is for another platform",
    "other-python": "a step that travels by value needs another version of Python",
    "replaces-framework": "requirements replace the PyTorch, TensorFlow or JAX of the image",
}
"""The names, each with what was found."""
