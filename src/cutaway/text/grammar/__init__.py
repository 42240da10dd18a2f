"""Which texts a request allows: JSON Schema, regular expressions, grammars, choices.

Knows these languages, and which tokens may follow a text that is begun. llguidance compiles them;
it is imported with the first grammar, so names are imported from the module that defines them.
"""
