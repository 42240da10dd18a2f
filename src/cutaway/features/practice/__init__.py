"""Practice: sampling by hand, from six logits to a token: questions, judged answers, explanations.

The right answers come from ``cutaway.sampling`` itself; there is no second implementation.
"""
