"""The OpenAPI document, made from the models that read the bodies."""

from __future__ import annotations

from functools import cache
from typing import Any

from pydantic.json_schema import models_json_schema

from anabranch import __version__
from anabranch.gateway.bodies import ChatBody, CompletionBody

_REF = "#/components/schemas/{model}"


@cache
def document() -> dict[str, Any]:
    """The document as plain data."""
    _, made = models_json_schema(
        [(ChatBody, "validation"), (CompletionBody, "validation")], ref_template=_REF
    )
    schemas = made["$defs"]
    schemas["Error"] = _error()
    schemas["Object"] = {"type": "object"}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "anabranch gateway",
            "version": __version__,
            "description": "Fork-join decoding behind the OpenAI API.",
        },
        "components": {
            "schemas": schemas,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"key": []}, {}],
        "paths": {
            "/v1/chat/completions": {"post": _post("ChatBody", "Answer a conversation")},
            "/v1/completions": {"post": _post("CompletionBody", "Continue a text")},
            "/v1/models": {"get": _get("List the models")},
            "/v1/models/{name}": {
                "get": {
                    **_get("One model", 404),
                    "parameters": [
                        {
                            "name": "name",
                            "in": "path",
                            "required": True,
                            "schema": {"type": "string", "minLength": 1},
                        }
                    ],
                }
            },
            "/health": {"get": _get("Whether the process lives")},
            "/ready": {"get": _get("Whether requests are taken", 503)},
        },
    }


def _error() -> dict[str, Any]:
    text = {"type": ["string", "null"]}
    return {
        "type": "object",
        "required": ["error"],
        "properties": {
            "error": {
                "type": "object",
                "required": ["message", "type"],
                "properties": {"message": text, "type": text, "param": text, "code": text},
            }
        },
    }


def _content(schema: str) -> dict[str, Any]:
    return {"application/json": {"schema": {"$ref": f"#/components/schemas/{schema}"}}}


def _post(schema: str, summary: str) -> dict[str, Any]:
    bad = {"description": "Refused; the error says why", "content": _content("Error")}
    codes = ("400", "401", "403", "404", "408", "413", "429", "502", "503")
    good = {
        "description": "The answer, or a stream of events",
        "content": {
            **_content("Object"),
            "text/event-stream": {"schema": {"type": "string"}},
        },
    }
    return {
        "summary": summary,
        "requestBody": {"required": True, "content": _content(schema)},
        "responses": {"200": good, **dict.fromkeys(codes, bad)},
    }


def _get(summary: str, *codes: int) -> dict[str, Any]:
    good = {"description": "As asked", "content": _content("Object")}
    bad = {"description": "Not so", "content": _content("Object")}
    return {"summary": summary, "responses": {"200": good, **{str(code): bad for code in codes}}}
