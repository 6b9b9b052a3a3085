"""The scan: a sample of all that the API offers, at sizes in cache and beyond, to find where it is slow."""
