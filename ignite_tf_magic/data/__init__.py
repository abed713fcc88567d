"""Loads data into caches: reads files, arrays and known data sets as NumPy columns, and writes them."""
