"""From arguments to a launch plan: keys, validation, granularity, memory order, kernels and threads."""
