"""Each command once: its words, what it calls of `session`, what it shows on a screen of either kind."""
