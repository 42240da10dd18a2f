"""Regular expressions of strings: their sets of characters, and look-around."""
