"""The systems: adapters that import them only when called."""

from systems import (
    embeddings,
    hqq,
    media,
    mlx,
    netcdf,
    nncf,
    onnx_runtime,
    quanto,
    science,
    tflite,
    torch_eager,
    torch_libraries,
    vectors,
)

SYSTEMS = tuple(
    system
    for module in (
        *(onnx_runtime, torch_eager, torch_libraries, quanto, hqq, mlx, nncf, tflite),
        *(embeddings, vectors, netcdf, science, media),
    )
    for system in module.SYSTEMS
)
