"""Values and functions of a notebook as bytes or text, in formats that run no code; text that no terminal obeys."""
