"""The systems: adapters that import them only when called."""

from systems import (
    ai_edge,
    coreml,
    embeddings,
    hqq,
    media,
    mlx,
    netcdf,
    nncf,
    onnx_runtime,
    quanto,
    qwix,
    science,
    tflite,
    torch_eager,
    torch_libraries,
    vectors,
)

MODULES = (
    *(onnx_runtime, torch_eager, torch_libraries, quanto, hqq, mlx, nncf, tflite, ai_edge, coreml, qwix),
    *(embeddings, vectors, netcdf, science, media),
)
SYSTEMS = tuple(system for module in MODULES for system in module.SYSTEMS)
