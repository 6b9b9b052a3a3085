"""The systems: adapters that import them only when called."""

from systems import embeddings, netcdf, onnx_runtime, science, tflite, torch_eager, torch_libraries

SYSTEMS = tuple(
    system
    for module in (onnx_runtime, torch_eager, torch_libraries, tflite, embeddings, netcdf, science)
    for system in module.SYSTEMS
)
