"""The systems: adapters that import them only when called."""

from systems import (
    embeddings,
    hqq,
    mlx,
    netcdf,
    nncf,
    onnx_runtime,
    quanto,
    science,
    tflite,
    torch_eager,
    torch_libraries,
)

_MODULES = (onnx_runtime, torch_eager, torch_libraries, quanto, hqq, mlx, nncf, tflite, embeddings, netcdf, science)
SYSTEMS = tuple(system for module in _MODULES for system in module.SYSTEMS)
