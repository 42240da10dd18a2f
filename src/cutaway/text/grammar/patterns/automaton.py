"""Patterns as automata: the texts of a node with look-around, written without it.

A state is what may follow (a term), and how far each look-behind has matched. The term after a
character is its derivative: J. A. Brzozowski, Derivatives of regular expressions, 1964. A
look-ahead is an ``All`` of its own node and of the rest; so a text is never read backwards. Where
nothing looks around any more, the rest of the text is written as it is.

Does not know which characters a set has, only whether there is one that some sets have and others
lack.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from cutaway.text.grammar.patterns.nodes import (
    ANY,
    ANYTHING,
    END,
    START,
    Alternatives,
    Characters,
    Concatenation,
    LookAround,
    Node,
    NotPlainError,
    Repeat,
    looks,
    write,
)
from cutaway.text.grammar.patterns.sets import combine, is_some

_MOST_STATES = 1024
_MOST_WORK = 30_000
"""Nodes whose derivatives are computed."""
_LONGEST = 16_384
"""Characters of a pattern."""


# -- terms -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Rest:
    """Texts that match these nodes, one after the other."""

    nodes: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Any:
    """Texts of any of the terms; of none where there are none."""

    terms: frozenset["Term"]


@dataclass(frozen=True, slots=True)
class All:
    """Texts of all the terms; every text where there are none."""

    terms: frozenset["Term"]


@dataclass(frozen=True, slots=True)
class Other:
    """Texts that the term does not have."""

    term: "Term"


Term = Rest | Any | All | Other

_NO_TEXT, _ALL_TEXTS = Any(frozenset()), All(frozenset())


def _rest(nodes: tuple[Node, ...]) -> Term:
    return _ALL_TEXTS if nodes == (ANYTHING,) else Rest(nodes)


def _any(terms: Iterable[Term]) -> Term:
    flat = {inner for term in terms for inner in (term.terms if isinstance(term, Any) else (term,))}
    if _ALL_TEXTS in flat:
        return _ALL_TEXTS
    return next(iter(flat)) if len(flat) == 1 else Any(frozenset(flat))


def _all(terms: Iterable[Term]) -> Term:
    flat = {inner for term in terms for inner in (term.terms if isinstance(term, All) else (term,))}
    if _NO_TEXT in flat:
        return _NO_TEXT
    return next(iter(flat)) if len(flat) == 1 else All(frozenset(flat))


def _other(term: Term) -> Term:
    if isinstance(term, Other):
        return term.term
    opposites: Mapping[Term, Term] = {_NO_TEXT: _ALL_TEXTS, _ALL_TEXTS: _NO_TEXT}
    return opposites.get(term) or Other(term)


# -- a character -------------------------------------------------------------------------------


class _UndecidedError(Exception):
    """Whether a character is of this set decides, and is not known."""

    def __init__(self, characters: str) -> None:
        super().__init__(characters)
        self.set = characters


Sets = Mapping[str, bool]
"""Set -> whether a character is a member."""
_Way = frozenset[tuple[str, bool]]
"""Sets that can be a key."""


class _State:
    """A place in a text: what may follow, and the terms of the look-behinds that end here.

    work  a number per node that may still be derived, in all states of an automaton
    """

    def __init__(self, term: Term, behind: Mapping[LookAround, Term], work: Iterator[int]) -> None:
        self.term, self.behind, self._work = term, behind, work
        self.key = term, tuple(behind.values())

    def is_end(self) -> bool:
        """Return whether a text may end here."""
        return self._may_end(self.term)

    def follow(self, sets: Sets) -> "_State":
        """Return the state after a character; _UndecidedError if too little of it is known."""
        behind = {look: self._derive(term, sets) for look, term in self.behind.items()}
        return _State(self._derive(self.term, sets), behind, self._work)

    def _may_end(self, term: Term) -> bool:
        match term:
            case Rest(nodes):
                return all(map(self._may_be_empty, nodes))
            case Any(terms):
                return any(map(self._may_end, terms))
            case All(terms):
                return all(map(self._may_end, terms))
            case Other(inner):
                return not self._may_end(inner)

    def _may_be_empty(self, node: Node) -> bool:
        """Return whether a node matches at the end of the text."""
        match node:
            case Characters():
                return False
            case Concatenation(parts):
                return all(map(self._may_be_empty, parts))
            case Alternatives(options):
                return any(map(self._may_be_empty, options))
            case Repeat(body, least, _):
                return least == 0 or self._may_be_empty(body)
            case LookAround(True, negated, body):
                return self._may_be_empty(body) is not negated
            case LookAround():
                return self._holds(node)

    def _holds(self, look: LookAround) -> bool:
        return self._may_end(self.behind[look]) is not look.negated

    def _derive(self, term: Term, sets: Sets) -> Term:
        match term:
            case Rest(nodes):
                return self._derive_nodes(nodes, sets, frozenset())
            case Any(terms):
                return _any(self._derive(inner, sets) for inner in terms)
            case All(terms):
                return _all(self._derive(inner, sets) for inner in terms)
            case Other(inner):
                return _other(self._derive(inner, sets))

    def _derive_nodes(
        self, nodes: tuple[Node, ...], sets: Sets, repeated: frozenset[tuple[Node, ...]]
    ) -> Term:
        """Derive nodes. repeated: what a repetition has led to here already, with no character."""
        if not nodes or nodes in repeated:
            return _NO_TEXT
        if next(self._work, None) is None:
            raise NotPlainError("its look-around needs too many states")
        node, rest = nodes[0], nodes[1:]
        match node:
            case Characters(characters):
                return self._derive_set(characters, rest, sets)
            case Concatenation(parts):
                return self._derive_nodes((*parts, *rest), sets, repeated)
            case Alternatives(options):
                ways: list[tuple[Node, ...]] = [(option, *rest) for option in options]
            case Repeat(body, least, limit):
                ways = [(body, node.fewer, *rest)] if limit != 0 else []
                ways += [rest] if least == 0 else []
                repeated |= {nodes}
            case LookAround(True, negated, body):
                ahead = self._derive_nodes((body, ANYTHING), sets, frozenset())
                then = self._derive_nodes(rest, sets, repeated)
                return _all((_other(ahead) if negated else ahead, then))
            case LookAround():
                ways = [rest] if self._holds(node) else []
        return _any(self._derive_nodes(way, sets, repeated) for way in ways)

    def _derive_set(self, characters: str, rest: tuple[Node, ...], sets: Sets) -> Term:
        if characters == ANY.set:
            return _rest(rest)
        if characters not in sets:
            raise _UndecidedError(characters)
        return _rest(rest) if sets[characters] else _NO_TEXT


def _first(node: Node) -> _State:
    behind = [look for look in looks(node) if not look.ahead]
    if any(inner.ahead for look in behind for inner in looks(look.body)):
        raise NotPlainError("it looks ahead within a look-behind")
    tracked = {look: _rest((ANYTHING, look.body)) for look in behind}
    nodes = (*_flatten((node,)), ANYTHING)
    at_start = nodes[0] is START
    whole = nodes[1:] if at_start else (ANYTHING, *nodes)
    return _State(_rest(whole), tracked, iter(range(_MOST_WORK)))


def _moves(state: _State) -> Iterator[tuple[Sets, _State]]:
    """Yield the states after a character, each with the sets that the character is of or not."""
    open_: list[Sets] = [{}]
    while open_:
        sets = open_.pop()
        try:
            yield sets, state.follow(sets)
        except _UndecidedError as undecided:
            open_ += _decide(sets, undecided.set)


def _decide(sets: Sets, characters: str) -> Iterator[Sets]:
    """Yield what is known of a character with either answer, where there is such a character."""
    for is_in in (False, True):
        decided = {**sets, characters: is_in}
        if is_some(*_sides(decided.items())):
            yield decided


# -- the automaton -----------------------------------------------------------------------------


_START, _END = -1, -2
"""States before the first and after the last."""
Moves = list[list[tuple[Sets, int]]]


def pattern_of(node: Node) -> str | None:
    """Return a pattern of the whole texts in which a node matches; None if there are none.

    NotPlainError if the automaton or its pattern is too large.
    """
    try:
        moves, ends, rests = _explore(_first(node))
    except RecursionError:  # a repetition of what may be empty
        raise NotPlainError("its look-around needs too many states") from None
    groups = _minimise(moves, ends, rests)
    labels = {(groups[state], _END): text for state, text in rests.items()}
    for group in {*groups}:
        for target, ways in _group_by_target(moves[group], groups).items():
            labels[group, target] = combine(sorted(map(_sides, ways)))
    return _eliminate(labels, groups[0], {groups[state] for state in ends})


def _explore(first: _State) -> tuple[Moves, set[int], dict[int, str]]:
    """Return (moves of each state, states in which a text may end, patterns of what follows).

    The first state is 0. A state has moves, or a pattern of all that follows.
    """
    numbers, states = {first.key: 0}, [first]
    moves: Moves = []
    rests: dict[int, str] = {}
    for number, state in enumerate(states):  # which grows
        ways: list[tuple[Sets, int]] = []
        if number and (rest := _plain_rest(state.term)) is not None:
            rests[number] = rest
            moves.append(ways)
            continue
        for sets, after in _moves(state):
            if after.key not in numbers:
                numbers[after.key] = len(states)
                states.append(after)
            ways.append((sets, numbers[after.key]))
        moves.append(ways)
        if len(states) > _MOST_STATES:
            raise NotPlainError("its look-around needs too many states")
    return moves, {i for i, s in enumerate(states) if i not in rests and s.is_end()}, rests


def _plain_rest(term: Term) -> str | None:
    """Return a pattern of the texts of a term that looks around at the end of the text alone."""
    if not isinstance(term, Rest):
        return None
    nodes = [*_flatten(term.nodes)]
    at = next((i for i, node in enumerate(nodes) if node is END), len(nodes))
    before = Concatenation(tuple(nodes[:at]))
    if any(node is not ANYTHING for node in nodes[at + 1 :]) or any(looks(before)):
        return None
    return write(before)


def _flatten(nodes: Iterable[Node]) -> Iterator[Node]:
    for node in nodes:
        if isinstance(node, Concatenation):
            yield from _flatten(node.parts)
        else:
            yield node


def _minimise(moves: Moves, ends: set[int], rests: Mapping[int, str]) -> list[int]:
    """Return of each state the first state that has the same continuations."""
    first_with = {text: state for state, text in reversed([*rests.items()])}
    groups = [
        first_with[rests[state]] + 2 if state in rests else int(state in ends)
        for state in range(len(moves))
    ]
    while True:
        first: dict[object, int] = {}
        finer = []
        for state, ways in enumerate(moves):
            after = _group_by_target(ways, groups).items()
            signature = groups[state], frozenset((to, frozenset(sets)) for to, sets in after)
            finer.append(first.setdefault(signature, state))
        if len(first) == len({*groups}):
            return finer
        groups = finer


def _group_by_target(ways: list[tuple[Sets, int]], groups: list[int]) -> dict[int, set[_Way]]:
    """Return the ways to each group, those merged that differ in one set alone."""
    targets: dict[int, set[_Way]] = {}
    for sets, target in ways:
        way, known_ways = frozenset(sets.items()), targets.setdefault(groups[target], set())
        while twin := next((way - {f} | {(f[0], not f[1])} for f in way
                            if way - {f} | {(f[0], not f[1])} in known_ways), None):  # fmt: skip
            known_ways.remove(twin)
            way &= twin
        known_ways.add(way)
    return targets


def _sides(way: Iterable[tuple[str, bool]]) -> tuple[list[str], list[str]]:
    """Return (sets that have a character, sets that do not)."""
    sets = sorted(way)
    return [name for name, inside in sets if inside], [n for n, inside in sets if not inside]


# -- the automaton's pattern -------------------------------------------------------------------


def _eliminate(labels: dict[tuple[int, int], str], first: int, ends: set[int]) -> str | None:
    """Return a pattern of all ways from the first state to an end, by taking out states."""
    start, end = _START, _END
    ways = {edge: [label] for edge, label in labels.items()}
    ways |= {(start, first): [""], **{(state, end): [""] for state in ends}}
    states = {state for edge in ways for state in edge} - {start, end}
    while states:
        into, out = Counter(edge[1] for edge in ways), Counter(edge[0] for edge in ways)
        # The fewest new ways; then from the start on, which nests no groups.
        state = min(states, key=lambda s: (into[s] * out[s] - into[s] - out[s], s))
        states.remove(state)
        loop = ways.pop((state, state), [])
        middle = f"(?:{'|'.join(loop)})*" if loop else ""
        ways_in = {edge: ways.pop(edge) for edge in [*ways] if edge[1] == state}
        ways_out = {edge: ways.pop(edge) for edge in [*ways] if edge[0] == state}
        for (before, _), left in ways_in.items():
            for (_, after), right in ways_out.items():
                known_ways = ways.setdefault((before, after), [])
                known_ways.append(f"{_any_way(left)}{middle}{_any_way(right)}")
                if sum(map(len, known_ways)) > _LONGEST:
                    raise NotPlainError("without look-around it is too long")
    return _any_way(ways[start, end]) if (start, end) in ways else None


def _any_way(ways: list[str]) -> str:
    """Return the alternatives in one group: nested groups have a limit."""
    texts = [text for text in ways if text]
    if len(ways) == 1 or not texts:
        return "".join(texts)
    return f"(?:{'|'.join(texts)}){'?' * (len(texts) < len(ways))}"
