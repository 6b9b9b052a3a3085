"""What is done with elements that are visited: minima and maxima, errors, histograms, searches, casts, packing."""
