"""Evidence that others can check: receipts, audits, comparison with another engine's answers.

Knows what equal bits prove to somebody who does not trust the machine that wrote a text.
Refuses to know how a text is generated: it reads the records of runs, and runs the model again.
"""
