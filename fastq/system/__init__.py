"""What every other package may rely on: imports when first needed, files that appear whole, tuning by CPU."""
