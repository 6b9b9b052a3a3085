"""A portable vector type for Numba. Every operation but the shuffles exists for a scalar under the same name.

A ``Vec(dtype, n)`` is n lanes held in registers, an LLVM vector that code generation splits or joins to fit the CPU.
Memory is reached through typed pointers. A formula written with these names is one function for both::

    @traced
    def square_sum(x, y):
        return fma(x, x, y * y)      # float32, float64 or a Vec of either

Operators ``+ - * / & | ^ ~ << >> < <= > >= == !=`` act lane by lane where LLVM has them for the lane type (no ``/``
for integers, no ``&`` for floats), and a scalar operand is broadcast. Comparisons give a mask, ``Vec(boolean, n)``.
Shuffles (`first`, `lower`, `upper`, `even`, `odd`, `join`, `transpose`, `mask_to_bits`) take a Vec only.
Nothing here has fast-math flags: each operation is the IEEE one, with the NaN rules stated.
"""

# ruff: noqa: F403
from fastq.engine.simd.arithmetic import *
from fastq.engine.simd.atomics import *
from fastq.engine.simd.conversion import *
from fastq.engine.simd.memory import *
from fastq.engine.simd.shuffles import *
from fastq.engine.simd.vector import *
from fastq.system.cpu import GRANULE as GRANULE
from fastq.system.cpu import LINE as LINE
from fastq.system.cpu import REGISTER_BITS as REGISTER_BITS
