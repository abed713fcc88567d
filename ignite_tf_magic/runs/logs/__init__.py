"""Output of workers: files on hosts, and their copies, byte by byte."""
