"""``cutaway trace play``: a recorded run step by step, in the terminal."""
