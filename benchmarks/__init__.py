"""How fast rows go in and out, beside what else could carry them; see README.md in this directory."""
