"""OpenAI's client, and the requests of tests; a request's seed decides the form of its text."""

import openai

MULTI_LINE, LONG, WIDE = 116, 118, 254  # seeds: with line feeds; of 60 tokens; with 4-byte letters
DELTA = "response.output_text.delta"


def client_of(served, make=openai.OpenAI):
    url = f"{served.url}/v1"
    return make(base_url=url, api_key="x", max_retries=0, _strict_response_validation=True)


def make_request(seed=LONG, input="ab", **more):
    """Return the keywords of a request; cutaway's own fields go into extra_body."""
    extension = {"seed": seed, **more.pop("ours", {})}
    fields = {"model": "tiny", "temperature": 1.0, "max_output_tokens": 60}
    return {**fields, "input": input, "extra_body": extension, **more}
