#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Renders conversations with chat templates as transformers does.

    make_chat_cases.py TEMPLATES_DIR CASES_DIR

TEMPLATES_DIR is trl/chat_templates of the wheel trl 1.16.0 (Apache 2.0), CASES_DIR holds the
reference cases chat-FAMILY.jsonl. Run from the root of the project; needs jinja2. Writes to
test/golden/text

  chat-qwen2.5.jsonl         the messages of chat-qwen3-2507.jsonl in Qwen2.5's template, with spans
  chat-gpt-oss-tools.jsonl   tool definitions with every form of schema that gpt-oss's template knows
  chat-FAMILY.jsonl          the reference cases of the other families, without what no test reads

A span of Qwen2.5 begins where the rendered prompt of the turn ends and ends before the line feed
that the rendered turn ends with: the template gives both, nothing is looked for in the text.
"""
import itertools
import json
import sys
from datetime import datetime
from pathlib import Path

from jinja2.exceptions import TemplateError
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

HEADER = b"<|im_start|>assistant\n"
OUT = Path("test/golden/text")
FAMILIES = ["qwen3-2507", "qwen3.5", "qwen3.5-small", "qwen3.6", "qwen3.8", "llama3.1", "gpt-oss"]
# No test has Llama's vocabulary: its licence is not ours to pass on.
WITHOUT_IDS = {"llama3.1"}


def template_of(path, date=None):
    """The environment of transformers' apply_chat_template."""
    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators,
                          sort_keys=sort_keys)

    def raise_exception(message):
        raise TemplateError(message)

    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True,
                                        extensions=[loopcontrols])
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = lambda form: (
        datetime.strptime(date, "%Y-%m-%d") if date else datetime.now()).strftime(form)
    return env.from_string(path.read_text(encoding="utf-8"))


def read_cases(path):
    return [json.loads(line) for line in path.read_bytes().decode().split("\n") if line]


def write_cases(name, cases):
    text = "".join(json.dumps(case, ensure_ascii=False) + "\n" for case in cases)
    (OUT / name).write_bytes(text.encode())
    print(f"{name}: {len(cases)} cases, {len(text.encode())} bytes")


def qwen25_cases(template, cases):
    made = []
    for case in cases:
        messages, tools = case["messages"], case["tools"]
        if any(isinstance(m.get("content"), list) for m in messages):
            continue

        def render(count, prompt):
            return template.render(messages=messages[:count], tools=tools,
                                   add_generation_prompt=prompt).encode()

        prompt = case["options"].get("add_generation_prompt", False)
        text = render(len(messages), prompt)
        spans = []
        for i, message in enumerate(messages):
            if message["role"] == "assistant":
                if i == 0:  # no prompt before it
                    begin = text.index(HEADER) + len(HEADER)
                else:
                    before = render(i, True)
                    assert text.startswith(before), case["id"]
                    begin = len(before)
                end = len(render(i + 1, False)) - len(b"\n")
                spans.append([begin, end])
        made.append({"id": case["id"], "family": "qwen2.5", "messages": messages, "tools": tools,
                     "options": case["options"], "text": text.decode(), "spans": spans})
    return made


def schemas():
    """Parameters of functions: each form alone, nested, optional, nullable, with defaults."""
    leaves = [
        {}, {"type": "string"}, {"type": "number"}, {"type": "integer"}, {"type": "boolean"},
        {"type": "object"}, {"type": "array"}, {"type": "null"}, {"type": []},
        {"type": "string", "enum": ["a", "b"]}, {"type": "string", "enum": []},
        {"type": "string", "enum": ["x", 1, 2.0, True, None]},
        {"type": "integer", "enum": [1, 2]},
        {"type": ["string", "null"]}, {"type": ["object"]}, {"type": ["a", "b", "c"]},
        {"anyOf": [{"type": "string"}]}, {"$ref": "#/x"},
    ]
    variants = [
        {"oneOf": [{"type": "string"}, {"type": "number"}]},
        {"oneOf": [{"type": "string", "description": "text", "default": "é"},
                   {"type": "integer", "default": 1.0}, {"type": "boolean", "description": "b"}]},
        {"oneOf": [{"type": "object"}, {"type": "string"}]},
        {"oneOf": [{"type": "object", "properties": {"a": {"type": "string"}}},
                   {"type": "object"}]},
        {"oneOf": []},
    ]
    objects = [
        {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "array"}},
         "required": ["b"]},
        {"type": "object", "properties": {"größe": {"type": "object", "properties": {
            "inner": {"type": "number", "description": "not shown"}}}}, "required": "größe"},
        {"type": "object", "properties": {}},
        {"type": "object", "properties": {"a": True, "b": 3, "c": None, "d": "text"}},
    ]
    simple = leaves + variants + objects
    arrays = [{"type": "array", "items": item} for item in simple]
    arrays += [{"type": "array", "items": {"type": "array", "items": item}} for item in leaves]
    arrays += [{"type": "array", "items": {"type": ["object", "object"]}},
               {"type": "array", "items": {"type": "string", "enum": [
                   "fifty characters are the limit", "of inner types"]}},
               {"type": "array", "items": {"type": ["e" * 24, "f" * 23]}},
               {"type": "array", "items": {"type": ["é" * 24, "f" * 23]}},
               {"type": "array", "items": {"type": ["é" * 24, "f" * 24]}},
               {"type": "array", "items": True}, {"type": "array", "items": {}}]
    forms = simple + arrays
    for form, nullable in itertools.product(forms, (False, True)):
        yield {**form, "nullable": True} if nullable else form
    for default in ("d", 5, 1.0, None, True, [], {"a": [1]}):
        for form in ({"type": "string"}, {"type": "string", "enum": ["d"]},
                     {"oneOf": [{"type": "string"}]}, {"type": "array"}):
            yield {**form, "default": default}
    yield {"type": "string", "description": "what\nit is"}
    yield {"type": "string", "description": ""}


def tool(name, parameters, **more):
    return {"type": "function", "function": {"name": name, "description": "Does it.",
                                             "parameters": parameters, **more}}


def tool_sets():
    for i, schema in enumerate(schemas()):
        yield [tool(f"f{i}", {"type": "object", "properties": {"x": schema}})]
    text = {"type": "string"}
    for required in (["a"], [], None, "ab", {"a": 1}, True, 0):
        yield [tool("r", {"properties": {"a": text, "b": text}, "required": required})]
    yield [tool("g", {}), tool("h", None), tool("i", {"properties": {}})]
    yield [{"type": "function", "function": {"name": "j", "parameters": {}}}]
    yield [{"name": "k", "description": "not wrapped", "parameters": {}}]
    yield [{"type": "function", "function": {"name": "l", "description": ""}}]
    yield [{"type": "function", "function": {"description": "no name"}}]


def gpt_oss_cases(template, date):
    made = []
    messages = [{"role": "user", "content": "Hi"}]
    for i, tools in enumerate(tool_sets()):
        case = {"id": f"schema/{i}", "family": "gpt-oss", "messages": messages, "tools": tools,
                "options": {"current_date": date}}
        try:
            case |= {"text": template.render(messages=messages, tools=tools,
                                             add_generation_prompt=False), "spans": []}
        except (TemplateError, TypeError) as error:
            case["error"] = f"{type(error).__name__}: {error}"
        made.append(case)
    return made


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    templates, cases_dir = map(Path, sys.argv[1:])
    write_cases("chat-qwen2.5.jsonl",
                qwen25_cases(template_of(templates / "qwen2_5.jinja"),
                             read_cases(cases_dir / "chat-qwen3-2507.jsonl")))
    date = "2025-08-05"
    write_cases("chat-gpt-oss-tools.jsonl",
                gpt_oss_cases(template_of(templates / "gptoss.jinja", date), date))
    for family in FAMILIES:
        cases = read_cases(cases_dir / f"chat-{family}.jsonl")
        for case in cases:
            drop = {"spans_from_header", "assistant_mask_from_header"}
            if family in WITHOUT_IDS:
                drop |= {"ids", "assistant_mask", "straddle"}
            for key in drop:
                case.pop(key, None)
        write_cases(f"chat-{family}.jsonl", cases)


if __name__ == "__main__":
    main()
