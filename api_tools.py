"""Tools as every API says them: nested in chat, flat in Responses, in groups, or named in a choice.

In: a request's `tools`, `tool_choice`, `response_format` or `text.format`. Out: ToolSpec, ToolChoice
and OutputFormat of the contract. Both shapes are taken in both APIs, as clients mix them up.
"""
from api_common import (ApiError, check_enum, check_object, check_string, invalid_type, invalid_value,
                        missing_parameter, dump_json, shown, check_array)
from backends.contract import BUILTIN_FAMILIES, BuiltinName, OutputFormat, ToolChoice, ToolSpec

MAX_TOOLS = 1024

_check_tool_name = check_string(256, empty=False)
_check_tool_text = check_string()


CHAT_TOOL_TYPES = ("function", "custom")
RESPONSE_TOOL_TYPES = (
    "function", "custom", "namespace", "file_search", "web_search", "web_search_2025_08_26", "web_search_preview",
    "web_search_preview_2025_03_11", "code_interpreter", "image_generation", "mcp", "computer",
    "computer_use_preview", "computer-preview", "shell", "local_shell", "apply_patch", "tool_search")


def read_tools(tools, path="tools", namespace=None, known_types=None):
    """A request's tools as a tuple of ToolSpec, groups laid flat. Raises ApiError 400.

    A built-in tool has its own fields in place of parameters. Tools of a type that nobody knows are
    accepted: they are echoed and never called. known_types:
    in strict mode, the only types there are.
    """
    if not tools:
        return ()
    if len(tools) > MAX_TOOLS:
        raise ApiError(400, "Invalid '%s': %d tools, at most %d are allowed." % (path, len(tools), MAX_TOOLS),
                       code="array_above_max_length", param=path)
    specs = []
    for index, tool in enumerate(tools):
        place = "%s[%d]" % (path, index)
        check_object(tool, place)
        kind = tool.get("type")
        if kind is None:
            kind = "custom" if tool.get("custom").__class__ is dict else "function"
        if kind.__class__ is not str:
            raise invalid_type(place + ".type", "a string", kind)
        if known_types is not None and kind not in known_types:
            raise invalid_value(place + ".type", "Invalid value for '%s.type': '%s'. Supported values are: %s."
                                % (place, shown(kind), ", ".join("'%s'" % name for name in known_types)))
        if kind == "namespace":
            members = tool.get("tools")
            if members.__class__ is not list:
                raise invalid_type(place + ".tools", "an array", members)
            specs += read_tools(members, place + ".tools", tool.get("name"))
        elif kind in ("function", "custom"):
            specs.append(_read_tool(tool, kind, place, namespace))
        else:
            if kind == "mcp":
                _check_mcp(tool, place)
            specs.append(ToolSpec(kind, None, None, tool, False, namespace, place))
    return tuple(specs)


def tools_text(tools):
    """A request's tool definitions as the model reads them: their JSON."""
    return dump_json(tools).decode("ascii")


def count_tool_tokens(tools, tokenizer, breathe=None):
    """Prompt tokens of a request's tool definitions."""
    text = tools_text(tools)
    return tokenizer.count(text) if breathe is None else tokenizer.count_slowly(text, breathe)


def _check_mcp(tool, place):
    """The fields of an MCP server that decide what is called; each may be left out."""
    if tool.get("server_label") is not None:
        _check_tool_text(tool["server_label"], place + ".server_label")
    allowed = tool.get("allowed_tools")
    if allowed.__class__ is dict:
        allowed = allowed.get("tool_names")
    if allowed is not None:
        check_array(_check_tool_name)(allowed, place + ".allowed_tools")
    approval = tool.get("require_approval")
    if approval.__class__ is dict:
        for word in ("always", "never"):
            if approval.get(word) is not None:
                check_object(approval[word], "%s.require_approval.%s" % (place, word))
                if approval[word].get("tool_names") is not None:
                    check_array(_check_tool_name)(approval[word]["tool_names"], "%s.require_approval.%s.tool_names"
                                                  % (place, word))
    elif approval is not None:
        check_enum("always", "never")(approval, place + ".require_approval")


def _read_tool(tool, kind, place, namespace):
    if tool.get(kind).__class__ is dict:            # chat's shape
        tool, place = tool[kind], "%s.%s" % (place, kind)
    name = tool.get("name")
    if name is None:
        raise missing_parameter(place + ".name")
    _check_tool_name(name, place + ".name")
    description = tool.get("description")
    if description is not None:
        _check_tool_text(description, place + ".description")
    parameters = tool.get("parameters" if kind == "function" else "format")
    field = place + (".parameters" if kind == "function" else ".format")
    if parameters is not None:
        check_object(parameters, field)
    strict = tool.get("strict") is True
    if strict and kind == "function" and parameters is not None:
        check_strict_schema(parameters, field)
    return ToolSpec(kind, name, description, parameters, strict, namespace, field)


def check_strict_schema(schema, param, path=()):
    """The service's rules for strict: true: objects are closed and every property is required.

    Source: api-reference 4.6; only where the request itself says strict: true.
    """
    if schema.__class__ is not dict:
        return
    properties = schema.get("properties")
    if properties.__class__ is dict or schema.get("type") == "object":
        where = ".".join(path) or "the root"
        if schema.get("additionalProperties") is not False:
            raise ApiError(400, "Invalid schema for '%s': with strict, 'additionalProperties' must be given "
                           "and false, at %s." % (param, where), param=param)
        required = schema.get("required")
        names = properties if properties.__class__ is dict else ()
        missing = [name for name in names if required.__class__ is not list or name not in required]
        if missing:
            raise ApiError(400, "Invalid schema for '%s': with strict, 'required' must list every property, "
                           "at %s; '%s' is missing." % (param, where, shown(missing[0])), param=param)
    for key in ("properties", "$defs", "definitions"):
        if schema.get(key).__class__ is dict:
            for name, part in schema[key].items():
                check_strict_schema(part, param, path + (key, name))
    for key in ("anyOf", "allOf", "oneOf"):
        if schema.get(key).__class__ is list:
            for number, part in enumerate(schema[key]):
                check_strict_schema(part, param, path + (key, str(number)))
    check_strict_schema(schema.get("items"), param, path + ("items",))


def read_tool_choice(choice, specs, path="tool_choice"):
    """A request's tool_choice as ToolChoice. Raises ApiError 400 for one that cannot be kept."""
    callable_names = {spec.name for spec in specs if spec.name is not None}
    if choice is None:
        return ToolChoice("auto" if specs else "none", None)
    if choice.__class__ is str:
        check_enum("none", "auto", "required")(choice, path)
        if choice == "required" and not specs:
            raise ApiError(400, "'%s' is 'required', but 'tools' is missing." % path, param=path)
        return ToolChoice(choice, None)
    if choice.__class__ is not dict:
        raise invalid_type(path, "a string or an object", choice)
    kind = choice.get("type")
    if kind is None:
        kind = "function" if "function" in choice or "name" in choice else None
    if kind.__class__ is not str:
        raise missing_parameter(path + ".type")
    if kind == "allowed_tools":
        return _read_allowed(choice, callable_names, specs, path)
    if kind not in ("function", "custom"):
        chosen = _chosen_builtin(choice, kind, specs, path)
        return ToolChoice("auto", ()) if chosen is None else ToolChoice("required", (chosen,))
    return ToolChoice("required", (_chosen_name(choice, kind, callable_names, path),))


def _chosen_name(choice, kind, names, path):
    place = path
    if choice.get(kind).__class__ is dict:
        choice, place = choice[kind], "%s.%s" % (path, kind)
    name = choice.get("name")
    if name is None:
        raise missing_parameter(place + ".name")
    _check_tool_name(name, place + ".name")
    if name not in names:
        raise ApiError(400, "Tool choice '%s' not found in 'tools' parameter." % shown(name), param=path)
    return name


def _chosen_builtin(choice, kind, specs, path):
    """The BuiltinName that a choice names, or None for a type that nobody knows: nothing is called then."""
    family = BUILTIN_FAMILIES.get(kind)
    if family is None:
        return None
    label = name = None
    if family == "mcp":
        label, name = choice.get("server_label"), choice.get("name")
        for field, value in (("server_label", label), ("name", name)):
            if value is not None:
                _check_tool_name(value, "%s.%s" % (path, field))
    if not any(BUILTIN_FAMILIES.get(spec.kind) == family and (
            label is None or spec.parameters.get("server_label") == label) for spec in specs):
        raise ApiError(400, "Tool choice '%s' not found in 'tools' parameter." % shown(
            kind if label is None else label), param=path)
    return BuiltinName(family, label, name)


def _read_allowed(choice, names, specs, path):
    if choice.get("allowed_tools").__class__ is dict:
        choice = choice["allowed_tools"]
        path += ".allowed_tools"
    mode = choice.get("mode", "auto")
    check_enum("auto", "required")(mode, path + ".mode")
    tools = choice.get("tools")
    if tools.__class__ is not list or not tools:
        raise invalid_value(path + ".tools", "Invalid '%s.tools': at least one tool must be named." % path)
    allowed = []
    for index, tool in enumerate(tools):
        place = "%s.tools[%d]" % (path, index)
        check_object(tool, place)
        kind = tool.get("type", "function")
        if kind in ("function", "custom"):
            allowed.append(_chosen_name(tool, kind, names, place))
        elif kind.__class__ is str:
            chosen = _chosen_builtin(tool, kind, specs, place)
            if chosen is not None:
                allowed.append(chosen)
    if mode == "required" and not specs:
        raise ApiError(400, "'%s' requires a tool, but 'tools' is missing." % path, param="tool_choice")
    return ToolChoice(mode, tuple(allowed))


def read_output_format(value, path, strict=False):
    """`response_format` (schema nested) or `text.format` (flat) as OutputFormat, None for text.

    A json_schema without name or schema is taken as any object, as @ai-sdk/open-responses sends it; in
    strict mode both are required.
    """
    if value is None:
        return None
    check_object(value, path)
    kind = value.get("type")
    check_enum("text", "json_object", "json_schema")(kind, path + ".type")
    if kind == "text":
        return None
    if kind == "json_object":
        return OutputFormat("json_object", None, path)
    nested = value.get("json_schema")
    place = path
    if nested.__class__ is dict:
        value, place = nested, path + ".json_schema"
    name, schema = value.get("name"), value.get("schema")
    if name is not None:
        check_string(64, empty=False)(name, place + ".name")
    elif strict or schema is not None:
        raise missing_parameter(place + ".name")
    if schema is None:
        if strict:
            raise missing_parameter(place + ".schema")
        return OutputFormat("json_object", None, path)
    check_object(schema, place + ".schema")
    if value.get("strict") is True:
        check_strict_schema(schema, path)
    return OutputFormat("json_schema", schema, place + ".schema")


def check_json_word(output_format, texts, param):
    """json_object mode needs the word "json" in the input (api-reference 2.2)."""
    if output_format is not None and output_format.kind == "json_object" \
            and not any("json" in text.lower() for text in texts):
        raise ApiError(400, "'%s' must contain the word 'json' in some form, to use 'json_object' as the "
                       "output format." % param, param=param)
