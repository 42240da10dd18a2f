"""JSON schemas with the checked keywords, and values that are often nearly valid."""

from hypothesis import strategies as st

KEYS = ("a", "b", "c")
_SCALARS = st.one_of(
    st.sampled_from(["", "a", "b", "ab", "é"]), st.integers(-2, 3), st.booleans(), st.none(),
    st.sampled_from([1.0, 0.5, -2.5]),
)  # fmt: skip


def values():
    """Draw values of any kind, small enough to be often equal."""
    return st.recursive(
        _SCALARS,
        lambda child: (
            st.lists(child, max_size=3) | st.dictionaries(st.sampled_from(KEYS), child, max_size=3)
        ),
        max_leaves=6,
    )


def _names():
    return st.lists(st.sampled_from(KEYS), max_size=2, unique=True)


def schemas():
    """Draw a schema with most of the checked keywords, and with masked ones."""
    leaves = st.one_of(
        st.booleans(),
        st.fixed_dictionaries({"type": st.sampled_from(
            ["string", "integer", "number", "boolean", "null", "object", "array"])}),
        st.fixed_dictionaries({"const": _SCALARS}),
        st.fixed_dictionaries({"enum": st.lists(_SCALARS, min_size=1, max_size=3)}),
        st.fixed_dictionaries({"minLength": st.just(1), "maxLength": st.integers(1, 2)}),
        st.fixed_dictionaries({"pattern": st.sampled_from(["^a", "b$", "a|b"])}),
        st.fixed_dictionaries({"minimum": st.integers(0, 1), "exclusiveMaximum": st.just(3)}),
        st.fixed_dictionaries({"multipleOf": st.sampled_from([2, 0.5])}),
        st.fixed_dictionaries({"required": _names()}),
        st.fixed_dictionaries({"minProperties": st.integers(0, 2)}),
        st.fixed_dictionaries({"maxProperties": st.integers(1, 3)}),
        st.fixed_dictionaries({"uniqueItems": st.booleans()}),
        st.fixed_dictionaries({"minItems": st.integers(0, 2)}),
    )  # fmt: skip
    return st.recursive(leaves, _nest, max_leaves=5)


def _nest(child):
    schema_lists = st.lists(child, min_size=1, max_size=3)
    by_key = st.dictionaries(st.sampled_from(KEYS), child, min_size=1, max_size=2)
    return st.one_of(
        st.fixed_dictionaries({"not": child}),
        st.fixed_dictionaries({"oneOf": schema_lists}),
        st.fixed_dictionaries({"anyOf": schema_lists}),
        st.fixed_dictionaries({"allOf": schema_lists}),
        st.fixed_dictionaries({"if": child}, optional={"then": child, "else": child}),
        st.fixed_dictionaries({"contains": child}, optional={
            "minContains": st.integers(0, 2), "maxContains": st.integers(1, 2)}),
        st.fixed_dictionaries({"propertyNames": child}),
        st.fixed_dictionaries({"dependentSchemas": by_key}),
        st.fixed_dictionaries({"dependentRequired": st.dictionaries(
            st.sampled_from(KEYS), _names(), min_size=1, max_size=2)}),
        st.fixed_dictionaries({"properties": by_key}, optional={"additionalProperties": child}),
        st.fixed_dictionaries({"patternProperties": st.dictionaries(
            st.sampled_from(["^a", "b"]), child, min_size=1, max_size=1)}),
        st.fixed_dictionaries({"items": child}, optional={"prefixItems": schema_lists}),
    )  # fmt: skip
