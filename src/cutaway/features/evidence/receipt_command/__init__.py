"""``cutaway receipt VERB``: a signed record of a run, which others can check."""

from cutaway.cli.options.parser import Parser, run_command

VERBS = {
    "key": "make a key that signs",
    "sign": "make a receipt of a recorded run",
    "verify": "check a receipt: its signature, its contents, and the model's own bits",
    "log": "check a log of receipts",
}
"""Verb -> help; its module is cutaway.features.evidence.receipt_command.VERB."""

_EXAMPLES = """
examples:
  cutaway receipt key me.pem
  cutaway generate "The sky is" --receipt me.pem
  cutaway receipt verify receipt-1f2e3d4c5b6a.json --trust me.pem.pub
  cutaway receipt verify receipt-1f2e3d4c5b6a.json --steps 8
  cutaway serve --receipts answers --receipt-key me.pem
  cutaway receipt log answers

A receipt does not prove when a text was written, nor that its prompt is the one that somebody saw,
nor that no other texts were drawn and thrown away. It proves that whoever signed it names this
model, these settings and this text; and the model, on any processor, proves that they belong
together. 'cutaway receipt VERB --help' explains a verb.
"""


def run(argv: list[str]) -> int:
    """Run the verb that the arguments begin with."""
    about = "Sign what a run depended on and computed, and check what others signed."
    parser = Parser("cutaway receipt", about)
    return run_command(parser, "verb", __name__, VERBS, argv, examples=_EXAMPLES)
