"""The scale of a whole array, in whose units NVFP4 has the scales of its blocks."""

from __future__ import annotations

import numpy as np

from fastq.engine.runtime.boundary import in_standard_mode
from fastq.formats.floats import FLOAT_FORMATS
from fastq.formats.granularity import ARRAY
from fastq.kernels.status import HAS_INFINITE_RANGE
from fastq.plan.reduction import Extremes
from fastq.requests.parameters import TENSOR_SCALES
from fastq.requests.quantization import Request
from fastq.system.dtypes import Array


class TensorScale:
    """Compute the tensor scale, with which the largest block scale is the largest float8_e4m3fn number."""

    def __init__(self, x: Array, request: Request) -> None:
        qtype = request.qtype
        self.compute = request.coding.compute
        self.divisor = self.compute.type(FLOAT_FORMATS[qtype.scale_element].max * qtype.largest_element)
        self.reduce = Extremes(x, ARRAY, request.nan) if request.coding.convention.scales_by_array(qtype) else None

    @in_standard_mode
    @np.errstate(under="ignore")
    def __call__(self, x: Array, tensor: Array) -> int:
        """Write the scale, and return the status: none where kernels of blocks report it."""
        if self.reduce is None:
            tensor[...] = 1
            return 0
        lo, hi, status = self.reduce(x)
        largest = np.maximum(np.maximum(-lo.astype(self.compute), hi.astype(self.compute)), self.compute.type(0))
        if largest == np.inf:
            status |= HAS_INFINITE_RANGE
        least, most = TENSOR_SCALES
        tensor[...] = min(max(largest / self.divisor, least), most) if largest else 1
        return status
