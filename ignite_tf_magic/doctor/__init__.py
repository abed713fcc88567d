"""Looks at all that runs need, and says what is wrong."""
