"""Out of memory: of a device or of the host, with what was asked for, what there was, and what to do."""

from __future__ import annotations

import pytest

from upshift.model.spec import Device
from upshift.runtime.step.explaining import exhaustion

H100 = Device(vendor="nvidia", model="NVIDIA H100", memory=80 << 30, uuid="GPU-1", index=5)


def raised(module: str, name: str, text: str, base: type[Exception] = RuntimeError) -> Exception:
    """An exception of a class that is called like this."""
    error = type(name, (base,), {"__module__": module})(text)
    assert isinstance(error, Exception)
    return error


TORCH = (
    "CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of 79.15 GiB of which "
    "1.23 GiB is free. Including non-PyTorch memory, this process has 77.91 GiB memory in use. Of the "
    "allocated memory 76.10 GiB is allocated by PyTorch, and 1.05 GiB is reserved by PyTorch but "
    "unallocated. If reserved but unallocated memory is large try setting "
    "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation."
)
TORCH_SHARED = (
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 1 has a total capacty of 79.15 GiB of which "
    "512.00 MiB is free. Process 4711 has 40.00 GiB memory in use. Process 4712 has 38.65 GiB memory in use. "
    "Of the allocated memory 30.00 GiB is allocated by PyTorch, and 8.00 GiB is reserved by PyTorch but "
    "unallocated. If reserved but unallocated memory is large try setting "
    "PYTORCH_ALLOC_CONF=expandable_segments:True"
)
TORCH_1 = (
    "CUDA out of memory. Tried to allocate 20.00 MiB (GPU 0; 7.79 GiB total capacity; 6.10 GiB already "
    "allocated; 14.25 MiB free; 6.20 GiB reserved in total by PyTorch) If reserved memory is"
)
TF_GPU = (
    "Graph execution error: OOM when allocating tensor with shape[16,64,2000,2000] and type float on "
    "/job:localhost/replica:0/task:0/device:GPU:0 by allocator GPU_0_bfc [Op:Conv2D]"
)
TF_CPU = TF_GPU.replace("device:GPU:0 by allocator GPU_0_bfc", "device:CPU:0 by allocator cpu")


def test_pytorch_says_everything() -> None:
    found = exhaustion(raised("torch", "OutOfMemoryError", TORCH), (H100,))
    assert found is not None
    assert found.sentence == (
        "GPU 0 is out of memory (NVIDIA H100): 21.5 GB could not be allocated, "
        "83.7 GB of its 85 GB were in use"
    )
    assert found.remedy == (
        'Use a smaller batch, accumulate gradients, or ask for a GPU with more memory: gpu_memory=">=106GB".'
    )


def test_memory_of_other_processes_and_in_pieces_has_remedies_of_its_own() -> None:
    found = exhaustion(raised("torch", "OutOfMemoryError", TORCH_SHARED), (H100, H100))
    assert found is not None
    assert found.sentence.startswith("GPU 1 is out of memory (NVIDIA H100): 2.15 GB could not be allocated")
    assert found.sentence.endswith("84.4 GB of that by other processes")
    assert found.remedy.startswith("Other processes are on this GPU")
    assert "gpu_memory" not in found.remedy  # it has more than the step needs
    assert found.remedy.endswith("Use a smaller batch, or accumulate gradients.")
    assert (
        "PyTorch holds 8.59 GB in pieces that are too small: set PYTORCH_ALLOC_CONF=expandable_segments:True."
        in found.remedy
    )


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (
            raised("torch.cuda", "OutOfMemoryError", TORCH_1),
            "GPU 0 is out of memory: 21 MB could not be allocated, 8.35 GB of its 8.36 GB were in use",
        ),
        (
            raised("torch", "AcceleratorError", "CUDA error: out of memory\nCUDA kernel errors might be"),
            "the GPU is out of memory",
        ),
        (
            raised("torch", "RuntimeError", "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling"),
            "the GPU is out of memory",
        ),
        (
            raised("torch", "OutOfMemoryError", TORCH.replace("CUDA", "HIP")),
            "GPU 0 is out of memory: 21.5 GB could not be allocated, 83.7 GB of its 85 GB were in use",
        ),
        (
            raised("torch", "RuntimeError", "MPS backend out of memory (MPS allocated: 18.00 GB, max "
                   "allowed: 18.13 GB). Tried to allocate 256.00 MB on private pool."),
            "the GPU is out of memory: 256 MB could not be allocated, it has 18.1 GB",
        ),
        (
            raised("cupy.cuda.memory", "OutOfMemoryError", "Out of memory allocating 8,000,000,512 bytes "
                   "(allocated so far: 4,000,000,000 bytes)."),
            "the GPU is out of memory: 8 GB could not be allocated",
        ),
        (
            raised("numba.cuda", "CudaAPIError", "[2] cuMemAlloc results in CUDA_ERROR_OUT_OF_MEMORY"),
            "the GPU is out of memory",
        ),
        (
            raised("tensorflow.python.framework.errors_impl", "ResourceExhaustedError", TF_GPU, Exception),
            "GPU 0 is out of memory: 16.4 GB could not be allocated",
        ),
        (
            raised("tensorflow.python.framework.errors_impl", "ResourceExhaustedError", TF_CPU, Exception),
            "host memory ran out: 16.4 GB could not be allocated",
        ),
        (
            raised("jaxlib.xla_extension", "XlaRuntimeError", "RESOURCE_EXHAUSTED: Out of memory allocating "
                   "4000000000000 bytes."),
            "host memory ran out: 4 TB could not be allocated",
        ),
    ],
)  # fmt: skip
def test_every_framework_has_words_for_it(error: Exception, sentence: str) -> None:
    found = exhaustion(error)
    assert found is not None and found.sentence == sentence


def test_jax_means_the_device_where_there_is_one() -> None:
    text = "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 17179869184 bytes."
    found = exhaustion(raised("jax.errors", "JaxRuntimeError", text), (H100,))
    assert found is not None
    assert found.sentence == (
        "GPU 0 is out of memory (NVIDIA H100): 17.2 GB could not be allocated, it has 85.9 GB"
    )
    assert 'gpu_memory=">=104GB"' in found.remedy


def test_of_several_devices_one_that_is_not_named_stays_unnamed() -> None:
    found = exhaustion(raised("torch", "RuntimeError", "CUDA error: out of memory"), (H100, H100))
    assert found is not None and found.sentence == "the GPU is out of memory"


def test_what_it_was_raised_from_counts_and_what_was_handled_does_not() -> None:
    why = raised("torch", "OutOfMemoryError", TORCH)
    raised_from, in_handling = ValueError("epoch 3 failed"), ValueError("something else")
    raised_from.__cause__ = why
    in_handling.__context__ = why
    found = exhaustion(raised_from)
    assert found is not None and found.device == 0
    assert exhaustion(in_handling) is None


class Wordless(Exception):
    def __str__(self) -> str:
        raise TypeError


@pytest.mark.parametrize(
    "error",
    [
        ValueError("no good"),
        MemoryError(),
        RuntimeError("CUDA error: device-side assert triggered"),
        raised("jaxlib", "XlaRuntimeError", "INVALID_ARGUMENT: shapes"),
        raised("grpc", "RpcError", "RESOURCE_EXHAUSTED: quota"),
        Wordless(),
    ],
)
def test_other_exceptions_are_something_else(error: Exception) -> None:
    assert exhaustion(error, (H100,)) is None


def test_the_real_classes_and_texts_of_pytorch() -> None:
    torch = pytest.importorskip("torch")
    found = exhaustion(torch.OutOfMemoryError(TORCH), (H100,))
    assert found is not None and found.device == 0
    assert exhaustion(torch.cuda.OutOfMemoryError(TORCH)) is not None
    with pytest.raises(RuntimeError) as raised_by_torch:
        torch.empty(10**15)
    found = exhaustion(raised_by_torch.value, (H100,))
    assert found is not None and found.host
    assert found.sentence == "host memory ran out: 4 PB could not be allocated"


@pytest.mark.parametrize(
    ("granted", "sentence", "fix"),
    [
        (
            (H100,),
            "GPU 0 is out of memory (NVIDIA H100): find_executable_batch_size found no batch",
            "gpu_memory=…",
        ),
        (
            (),
            "host memory ran out: find_executable_batch_size found no batch that is small enough",
            "for memory,",
        ),
    ],
)
def test_batches_that_are_never_small_enough_are_a_want_of_memory(
    granted: tuple[Device, ...], sentence: str, fix: str
) -> None:
    found = exhaustion(RuntimeError("No executable batch size found, reached zero."), granted)
    assert found is not None
    assert found.sentence.startswith(sentence)
    assert fix in found.remedy


def test_accelerate_says_it_so() -> None:
    pytest.importorskip("torch")
    memory = pytest.importorskip("accelerate.utils.memory")

    @memory.find_executable_batch_size(starting_batch_size=4)  # type: ignore[untyped-decorator]
    def train(batch_size: int) -> None:
        raise RuntimeError("CUDA out of memory. Tried to allocate 20.00 GiB.")

    with pytest.raises(RuntimeError) as raised:
        train()
    assert exhaustion(raised.value) is not None
