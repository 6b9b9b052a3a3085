"""The basis of all other packages: late imports, files that appear whole, tuning by CPU."""
