"""Data in: files, arrays and known data sets as NumPy columns, and from there into a cache."""
