"""The floats that NumPy lacks and that others hold and store: one table of their names.

Those of fewer than 8 bits are not among them: files and other libraries hold several of them in a byte.
"""

# As safetensors spells them, and as ml_dtypes and the libraries of the array API do
ML_FLOATS = {
    "BF16": "bfloat16",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
    "F8_E8M0": "float8_e8m0fnu",
}
