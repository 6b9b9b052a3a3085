"""Arrays as tensors of torch, and the bytes of those: of dtypes too that one of the two lacks."""

import numpy as np


def as_tensor(x):
    import torch

    if x.dtype.name in ("bfloat16", "float8_e4m3fn"):
        return torch.from_numpy(x.view(f"i{x.itemsize}")).view(getattr(torch, x.dtype.name))
    return torch.from_numpy(x)


def as_bytes(tensor):
    import torch

    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy()


def bytes_of(x):
    return np.ascontiguousarray(x).reshape(-1).view(np.uint8)
