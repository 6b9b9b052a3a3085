"""The visits of elements: the groups that share parameters, the order, and the threads that read them."""
