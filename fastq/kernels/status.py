"""Status bits: what a kernel reports of the elements that it visited."""

HAS_NAN = 1
HAS_INFINITE_RANGE = 2
OUT_OF_RANGE = 4
