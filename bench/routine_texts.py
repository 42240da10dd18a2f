"""Prompts for routine texts, which drafters are trained and measured with, and for surprising ones.

Routine is what a program asks for: JSON, code, tables, SQL, forms. A drafter is measured with every
eighth thing, and trained with all others. For surprising texts, the model invents a story.
"""

from cutaway import LLM

_TASKS = (
    "Write a JSON list of ten {0}s. Each has the keys id, name, colour and price.",
    "Write a CSV table of ten {0}s with the columns id, name, weight and price.",
    "Write a Python class for a {0} with five attributes, and a getter and a setter for each.",
    "Write SQL statements that create a table of {0}s and insert ten rows.",
    "Write an HTML table of ten {0}s with their names, colours and prices.",
    "List twenty kinds of {0}s, numbered, one a line.",
    "Write a formal letter that orders ten {0}s from a shop.",
    "Write Python functions that add, remove, find and count {0}s in a list.",
)
_THINGS = """
lamp car flower book chair bird ship coat table phone clock tree bottle house cake
horse camera knife train stamp pencil garden shirt bicycle guitar window planet
cloud river bridge engine carpet mirror candle button ticket basket ladder hammer
spoon blanket kettle helmet violin orange potato tomato rabbit tiger spider camel
parrot island castle forest market hospital library museum hotel kitchen factory
airport theatre student teacher doctor farmer sailor driver painter singer customer
employee product order invoice account payment device
"""
_MORE_THINGS = """
apple banana lemon cherry peach grape carrot onion pepper bean cookie sandwich cheese
sausage soup salad coffee tea juice wine dog cat cow sheep goat pig duck goose fox
wolf bear lion elephant monkey snake frog fish whale shark bee butterfly ant hat shoe
sock glove scarf belt ring necklace watch wallet sofa desk shelf cabinet pillow towel
curtain vase drum flute trumpet piano bus truck boat plane motorcycle tractor rocket
battery cable screen keyboard printer sensor pump valve pipe screw nail
brush pen notebook magazine newspaper envelope poster photo letter song film game
course lesson exam school office bank restaurant street village country city event
meeting task project report contract policy message server website
"""

STORIES = ("The next morning ", "Emma had ", "I cannot think ", "My dear friend ")


def routine_prompts(llm: LLM, *, held_out: bool) -> list[list[int]]:
    """Return the prompts' token ids; held_out: those that no drafter was trained with."""
    things = _THINGS.split()
    measured = things[7::8]
    trained = sorted({*things, *_MORE_THINGS.split()} - {*measured})
    return [
        llm.chat_prompt([{"role": "user", "content": task.format(thing)}])
        for thing in (measured if held_out else trained)
        for task in _TASKS
    ]
