"""Renders the conversations of chatml.json with a template, as transformers does, into NAME.json.

python3 tests/golden/chat/render.py NAME...   (needs the Debian package python3-jinja2)
"""

import datetime
import json
import os
import sys

import jinja2
import jinja2.ext
from jinja2.sandbox import ImmutableSandboxedEnvironment

FOLDER = os.path.dirname(os.path.abspath(__file__))
DAY = datetime.date(2026, 11, 29)
# What the conversations of chatml.json lack: variables, documents, odd values for tojson.
MORE = [
    {"name": "variables", "messages": [{"role": "user", "content": "Q"}], "mood": "calm", "effort": "high",
     "documents": [{"title": "One", "text": "first\ntext"}, {"title": "Two", "text": "\"second\""}],
     "add_generation_prompt": True},
    {"name": "schema", "messages": [{"role": "user", "content": "Q"}], "add_generation_prompt": True,
     "tools": [{"type": "function", "function": {"name": "deep", "description": "Ünïcode \"quotes\" & <tags>", "parameters": {
         "type": "object", "required": ["list"], "properties": {
             "list": {"type": "array", "items": {"type": "object", "properties": {
                 "x": {"type": "number", "default": 1.0}, "y": {"type": ["string", "null"]}}}},
             "enum": {"type": "string", "enum": ["a", "b"]}, "big": {"type": "integer", "minimum": -1e20, "maximum": 1e-7},
             "empty": {}, "none": {"type": "array", "items": {}, "default": []}}}}},
         {"type": "function", "function": {"name": "bare", "description": "No parameters", "parameters": {
             "type": "object", "properties": {}}}}]},
]


def environment():
    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols])
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = DAY.strftime
    return env


def main():
    with open(os.path.join(FOLDER, "chatml.json"), encoding="utf-8") as file:
        conversations = [{k: v for k, v in case.items() if k not in ("rendered", "error")}
                         for case in json.load(file)["cases"]] + MORE
    for name in sys.argv[1:]:
        with open(os.path.join(FOLDER, "templates", name + ".jinja"), encoding="utf-8") as file:
            source = file.read()
        template = environment().from_string(source)
        cases = []
        for case in conversations:
            variables = {"tools": None, "documents": None, "bos_token": "<s>", "eos_token": "</s>",
                         **{k: v for k, v in case.items() if k != "name"}}
            try:
                cases.append({**case, "rendered": template.render(**json.loads(json.dumps(variables)))})
            except Exception as error:  # what a template may raise is part of what is recorded
                cases.append({**case, "error": f"{type(error).__name__}: {error}"[:200]})
        dated = "strftime_now" in source
        golden = {"template": f"templates/{name}.jinja", "bos_token": "<s>", "eos_token": "</s>",
                  "source": "written for these tests; rendered by Jinja2 " + jinja2.__version__,
                  "date_note": f"templates calling strftime_now render the day {DAY}" if dated else None, "cases": cases}
        with open(os.path.join(FOLDER, name + ".json"), "w", encoding="utf-8") as file:
            json.dump(golden, file, ensure_ascii=False, indent=1)
            file.write("\n")
        errors = [case["name"] for case in cases if "error" in case]
        print(name, len(cases), "conversations, errors:", errors)


if __name__ == "__main__":
    main()
