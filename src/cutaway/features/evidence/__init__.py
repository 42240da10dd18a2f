"""What others can check of a run: receipts, audits, another engine's answers.

Knows what follows from equal bits for somebody who does not trust the machine that wrote a text.
Refuses to know how a text is generated: it reads what runs left behind, and asks the model again.
"""
