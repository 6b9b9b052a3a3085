"""The basis of all other packages: lazy imports, files that appear whole, tuning by CPU."""
