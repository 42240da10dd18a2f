"""Fields of requests about thinking in each of the four protocols, and thoughts of answers."""

ASK = [{"role": "user", "content": "a"}]
FORMS = {
    "/v1/chat/completions": {"messages": ASK, "max_tokens": 40},
    "/v1/responses": {"input": "a", "max_output_tokens": 40},
    "/v1/messages": {"messages": ASK, "max_tokens": 40},
    "/api/chat": {"messages": ASK, "stream": False, "options": {"num_predict": 40}},
}
NONE = {
    "/v1/chat/completions": {"reasoning_effort": "none"},
    "/v1/responses": {"reasoning": {"effort": "none"}},
    "/v1/messages": {"thinking": {"type": "disabled"}},
    "/api/chat": {"think": False},
}
OFF_NAMES = [
    {"reasoning_effort": "none"},
    {"reasoning": {"effort": "none"}},
    {"reasoning": {"enabled": False}},
    {"thinking": {"type": "disabled"}},
    {"enable_thinking": False},
    {"think": False},
    {"chat_template_kwargs": {"enable_thinking": False}},
    {"chat_template_kwargs": {"thinking": False}},
    {"chat_template_kwargs": {"enable_thinking": False, "thinking": False}},
    {"enable_thinking": False, "chat_template_kwargs": {"enable_thinking": False}},
    {"reasoning_effort": "none", "thinking": {"type": "disabled"}, "think": "none"},
]
"""The fields by which clients of chats switch thinking off, and some that they send together."""
ON_NAMES = [
    {"reasoning": {"enabled": True}},
    {"reasoning": {"max_tokens": 20}},
    {"thinking": {"type": "enabled", "budget_tokens": 20}},
    {"enable_thinking": True, "thinking_token_budget": 20},
    {"enable_thinking": True, "thinking_token_budget": 20, "thinking_budget_tokens": 20},
    {"enable_thinking": True, "thinking_token_budget": 20, "thinking_budget_tokens": -1},
    {"think": True},
    {"chat_template_kwargs": {"enable_thinking": True}},
]
"""The same for thinking on."""
TWENTY = {
    "/v1/chat/completions": {"thinking_token_budget": 20},
    "/v1/responses": {"thinking_budget_tokens": 20},
    "/v1/messages": {"thinking": {"type": "enabled", "budget_tokens": 20}},
    "/api/chat": {"thinking_token_budget": 20},
}


def thought_and_count(path, answer):
    """Return (thought, number of its tokens) of an answer in one of the protocols."""
    if path == "/v1/chat/completions":
        message = answer["choices"][0]["message"]
        count = answer["usage"]["completion_tokens_details"]["reasoning_tokens"]
        return message.get("reasoning_content", ""), count
    if path == "/v1/responses":
        reasoning = [item for item in answer["output"] if item["type"] == "reasoning"]
        count = answer["usage"]["output_tokens_details"]["reasoning_tokens"]
        return "".join(item["content"][0]["text"] for item in reasoning), count
    if path == "/v1/messages":
        reasoning = [item["thinking"] for item in answer["content"] if item["type"] == "thinking"]
        return "".join(reasoning), answer["usage"]["reasoning_tokens"]
    return answer["message"].get("thinking", ""), answer["cutaway"]["reasoning_tokens"]
