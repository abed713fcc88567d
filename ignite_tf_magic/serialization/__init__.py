"""Converts notebook values to bytes that run no code, and functions to scripts; makes text safe for terminals."""
