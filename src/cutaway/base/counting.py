"""Counting: people count steps, passes and cells from 1; data (indices, records, fields) from 0.

The only place in Python that turns one into the other; ``figures/numbers.js`` is it for the page.
"""

from cutaway.errors import InputError


def count_from_1(index: int) -> int:
    """Return the number by which people call the step, pass or cell of this index."""
    return index + 1


def count_from_0(number: int, plural: str = "steps") -> int:
    """Return the index of the step, pass or cell that people call by this number.

    plural: of what is counted. InputError where the number is below 1.
    """
    if number < 1:
        raise InputError(f"{plural} count from 1, and there is no {number}: give 1 for the first")
    return number - 1


def check_index(flag: str, index: int | None, indices: range) -> None:
    """Raise InputError unless the index, which a flag gave as a number from 1, is one of these."""
    if index is not None and not indices:
        raise InputError(
            f"{flag} {count_from_1(index)}: there is none to choose from; leave it out"
        )
    if index is not None and index not in indices:
        first, last = count_from_1(indices.start), count_from_1(indices.stop - 1)
        raise InputError(f"{flag} must be {first} to {last}, not {count_from_1(index)}")
