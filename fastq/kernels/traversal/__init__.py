"""How elements are visited: which of them share parameters, and in which order and by which threads they are read."""
