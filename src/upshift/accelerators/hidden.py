"""How to hide every accelerator from a process."""

from __future__ import annotations

HIDDEN = {"CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": "-1", "ROCR_VISIBLE_DEVICES": "-1"}
"""Environment of a step with ``gpu_count=0``.

Sources: CUDA C++ Programming Guide, 'CUDA Environment Variables'; ROCm documentation, 'GPU isolation
techniques'. An index that does not exist ends the list of devices, so ``-1`` gives none.
"""
