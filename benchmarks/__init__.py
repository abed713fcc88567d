"""Measures the speed of rows in and out, compared with other ways to move them; see README.md in this directory."""
