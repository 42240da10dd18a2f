"""The tools of ten servers, as their clients send them to a model: written anew for these tests.

Each is of the kind that a public server of the Model Context Protocol offers, with the keywords
that their generators of schemas write (zod, pydantic, Go's jsonschema, by hand).
"""

from typing import Any

DRAFT = "http://json-schema.org/draft-07/schema#"


def zod_object(properties: dict[str, Any], *required: str, **more: Any) -> dict[str, Any]:
    """Return an object's schema as zod writes it."""
    return {
        "type": "object", "properties": properties, "required": [*required],
        "additionalProperties": False, "$schema": DRAFT, **more,
    }  # fmt: skip


TEXT: dict[str, Any] = {"type": "string"}
WHOLE = {"type": "integer", "minimum": -(2**53) + 1, "maximum": 2**53 - 1}  # zod's int()
PATHS = {"type": "array", "items": TEXT, "minItems": 1, "uniqueItems": True}
NULL_TEXT = {"anyOf": [TEXT, {"type": "null"}], "default": None, "title": "Name"}  # pydantic's

# fmt: off
SERVERS: dict[str, dict[str, dict[str, Any]]] = {
    "files": {
        "read_multiple_files": zod_object({"paths": PATHS}, "paths"),
        "edit_file": zod_object(
            {
                "path": TEXT,
                "edits": {
                    "type": "array", "minItems": 1,
                    "items": zod_object({"oldText": TEXT, "newText": TEXT}, "oldText", "newText"),
                },
                "dryRun": {"type": "boolean", "default": False},
            },
            "path", "edits",
        ),
        "read_text_file": zod_object(
            {"path": TEXT, "head": {"type": "number"}, "tail": {"type": "number"}},
            "path", dependentRequired={"tail": ["path"]}, **{"not": {"required": ["head", "tail"]}},
        ),
        "search_files": zod_object(
            {"path": TEXT, "pattern": TEXT, "excludePatterns": {**PATHS, "minItems": 0}},
            "path", "pattern",
        ),
    },
    "repository_host": {
        "create_issue": {
            "type": "object",
            "properties": {
                "owner": {"type": "string", "pattern": "^[A-Za-z0-9](?!.*--)[A-Za-z0-9-]{0,38}$"},
                "repo": {"type": "string", "minLength": 1, "maxLength": 100},
                "title": {"type": "string", "minLength": 1}, "body": NULL_TEXT,
                "labels": {"type": "array", "items": TEXT, "uniqueItems": True, "maxItems": 100},
                "assignees": {"type": "array", "items": {"type": "string"}, "maxItems": 10},
                "milestone": {"type": ["integer", "null"], "exclusiveMinimum": 0},
            },
            "required": ["owner", "repo", "title"],
        },
        "list_commits": zod_object(
            {
                "sha": {"type": "string", "pattern": "^[0-9a-f]{7,40}$"},
                "since": {"type": "string", "format": "date-time"},
                "page": {"type": "integer", "minimum": 1}, "perPage": {"maximum": 100, **WHOLE},
                "direction": {"enum": ["asc", "desc"], "default": "desc"},
            },
        ),
        "merge": zod_object(
            {
                "method": {"oneOf": [{"const": "merge"}, {"const": "squash"}, {"const": "rebase"}]},
                "number": WHOLE,
            },
            "number",
        ),
    },
    "database": {
        "query": {"type": "object", "properties": {
            "sql": TEXT,
            "params": {"type": "array", "items": {"type": ["string", "number", "boolean", "null"]}},
        }},
        "insert": zod_object(
            {
                "table": {"type": "string", "pattern": "^(?!sqlite_)[A-Za-z_][A-Za-z0-9_]*$"},
                "row": {
                    "type": "object", "minProperties": 1, "propertyNames": {"pattern": "^[a-z_]+$"},
                    "additionalProperties": {"type": ["string", "number", "null"]},
                },
            },
            "table", "row",
        ),
        "explain": zod_object({
            "format": {"enum": ["text", "json"]}, "plan": {"not": {"const": ""}},
        }),
    },
    "messages": {
        "post_message": zod_object(
            {
                "channel_id": {"type": "string", "pattern": r"^[CGD][A-Z0-9]{8,}$"},
                "text": {"type": "string", "maxLength": 40000},
                "thread_ts": {"type": "string", "pattern": r"^\d+\.\d{6}$"},
                "metadata": {"type": "object", "propertyNames": TEXT, "additionalProperties": {}},
            },
            "channel_id", "text",
        ),
        "add_reaction": zod_object({"timestamp": TEXT, "reaction": TEXT}, "timestamp", "reaction"),
    },
    "browser": {
        "navigate": zod_object({"url": {"type": "string", "format": "uri"}}, "url"),
        "click": zod_object(
            {
                "element": TEXT, "ref": TEXT, "button": {"enum": ["left", "right", "middle"]},
                "modifiers": {
                    "type": "array", "uniqueItems": True,
                    "items": {"enum": ["Alt", "Control", "Meta", "Shift"]},
                },
            },
            "element", "ref",
        ),
        "fill_form": zod_object(
            {"fields": {"type": "array", "items": zod_object(
                {"name": TEXT, "type": {"enum": ["textbox", "checkbox"]}, "value": TEXT},
                "name", "type", "value",
            )}},
            "fields",
        ),
        "wait_for": zod_object(
            {"time": {"type": "number", "exclusiveMinimum": 0}, "text": TEXT, "textGone": TEXT},
            minProperties=1,
        ),
        "screenshot": zod_object({
            "type": {"default": "png", "enum": ["png", "jpeg"]},
            "clip": {"type": "object", "properties": {
                side: {"type": "number", "minimum": 0} for side in ("x", "y", "width", "height")
            }, "additionalProperties": False},
        }),
    },
    "calendar": {
        "create_event": zod_object(
            {
                "summary": TEXT, "start": {"type": "string", "format": "date-time"},
                "day": {"type": "string", "format": "date"}, "reminders": {
                    "type": "array", "items": {"type": "integer", "multipleOf": 5, "minimum": 0},
                    "uniqueItems": True, "maxItems": 5,
                },
                "attendees": {"type": "array", "items": {"type": "string", "format": "email"}},
                "recurrence": {
                    "oneOf": [{"type": "string"}, {"type": "array", "items": TEXT, "minItems": 1}]
                },
            },
            "summary", "start",
            **{"if": {"required": ["recurrence"]}, "then": {"required": ["day"]}},
        ),
    },
    "memory": {
        "create_entities": zod_object({"entities": {"type": "array", "items": zod_object(
            {"name": TEXT, "entityType": TEXT, "observations": {"type": "array", "items": TEXT}},
            "name", "entityType", "observations",
        )}}, "entities"),
        "add_tree": {
            "type": "object", "properties": {"root": {"$ref": "#/$defs/Node"}},
            "required": ["root"], "$defs": {"Node": {
                "type": "object", "required": ["id"], "properties": {
                    "id": {"type": "string", "format": "uuid"},
                    "children": {"type": "array", "items": {"$ref": "#/$defs/Node"}},
                },
            }},
        },
    },
    "fetch": {
        "fetch": {
            "title": "Fetch", "description": "Parameters for fetching a URL.", "type": "object",
            "properties": {
                "url": {"type": "string", "format": "uri", "minLength": 1, "title": "Url"},
                "max_length": {"type": "integer", "default": 5000, "exclusiveMaximum": 1000000,
                               "exclusiveMinimum": 0, "title": "Max Length"},
                "headers": {"type": "object", "additionalProperties": TEXT, "patternProperties": {
                    "^[xX]-": {"type": "string", "maxLength": 200},
                }},
                "raw": {"type": "boolean", "default": False, "title": "Raw"},
            },
            "required": ["url"],
        },
    },
    "clock": {
        "get_current_time": {"type": "object", "properties": {
            "timezone": {"type": "string", "examples": ["Europe/London"]},
        }, "required": ["timezone"]},
        "convert_time": zod_object(
            {"time": {"type": "string", "pattern": r"^([01]?\d|2[0-3]):[0-5]\d$"}, "to": TEXT},
            "time",
        ),
        "no_arguments": {"type": "object", "properties": {}},
        "nothing_at_all": {},
    },
    "notes": {
        "update_page": zod_object(
            {
                "page_id": {"type": "string", "format": "uuid"},
                "properties": {"type": "object", "propertyNames": {"minLength": 1},
                               "additionalProperties": {"anyOf": [TEXT, {"type": "number"}]}},
                "children": {
                    "type": "array", "contains": {"required": ["type"]}, "items": {"oneOf": [
                        zod_object({"type": {"const": "paragraph"}, "text": TEXT}, "type", "text"),
                        zod_object({"type": {"const": "divider"}}, "type"),
                        zod_object(
                            {"type": {"const": "heading"}, "level": {"enum": [1, 2, 3]}}, "type"
                        ),
                    ]},
                },
                "color": {"type": "string", "pattern": r"^(?:(red)|(blue))(?=)\1?$"},
                "price": {"type": "number", "multipleOf": 0.07},
                "id": {"const": 9007199254740993},
            },
            "page_id",
        ),
    },
}
# fmt: on
"""Server -> tool -> its schema."""

TOOLS = {
    f"mcp__{server}__{tool}": schema
    for server, tools in SERVERS.items()
    for tool, schema in tools.items()
}
"""The name that a client gives a tool -> its schema."""
