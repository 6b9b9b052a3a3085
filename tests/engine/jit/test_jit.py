"""The kernels of a call can be read, and the target is told."""

import numpy as np
from llvmlite import binding
from numba.core import config
from numba.core.registry import cpu_target

import fastq
from fastq.engine.jit.options import Target, current_target


def test_kernels_of_a_call_can_be_read():
    x = np.linspace(-3, 3, 4096, dtype=np.float32)
    for _ in range(2):  # the second call is known from before
        kernels = fastq.kernels.inspect(fastq.quantize_linear, x, np.float32(0.1), np.int8(0))
        (kernel,) = kernels
        assert kernel.name == "runs.runs"
        assert "float32" in kernel.types
        assert "llvm.lrint" in kernel.llvm
        assert "i64 @fastq_kernel(" in kernel.llvm
        assert "fastq_kernel:" in kernel.asm
        assert kernels.llvm.startswith(f"; runs.runs({kernel.types})\n")
        assert kernels.asm.startswith(f"# runs.runs({kernel.types})\n")
        assert repr(kernels) == "<kernels runs.runs>"


def test_kernels_of_several_launches_come_once_each():
    x = np.linspace(-3, 3, 1 << 19, dtype=np.float32)
    names = [kernel.name for kernel in fastq.kernels.inspect(lambda: [fastq.quantize(x, "int8") for _ in range(2)])]
    assert len(names) == len(set(names)) or names.count("runs.runs") == 2
    assert 1 < len(names) <= 4
    assert fastq.kernels.inspect(lambda: None) == ()


def test_the_target_is_that_of_numba():
    assert current_target() == cpu_target.target_context.codegen().magic_tuple()


def test_a_cpu_that_llvm_does_not_know_has_no_features(monkeypatch):
    def unknown():
        raise RuntimeError("no features")

    monkeypatch.setattr(config, "CPU_FEATURES", None)
    monkeypatch.setattr(binding, "get_host_cpu_features", unknown)
    assert current_target().features == ""


def test_a_feature_is_not_another_whose_name_begins_like_it():
    assert not Target("x86_64", "x", "-fma,+fma4").has("fma")
    assert Target("x86_64", "x", "+avx2,+fma").has("fma")


def test_arm_is_told_by_the_triple():
    assert Target("aarch64-unknown-linux-gnu", "generic", "").is_arm
    assert Target("arm64-apple-darwin22", "apple-m1", "").is_arm
    assert not Target("x86_64-unknown-linux-gnu", "znver4", "").is_arm
