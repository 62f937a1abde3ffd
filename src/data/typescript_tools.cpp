// SPDX-License-Identifier: Apache-2.0
// Follows the macros render_typescript_type and render_tool_namespace of gpt-oss's template (wheel
// trl 1.16.0, trl/chat_templates/gptoss.jinja), rendered with trim_blocks and lstrip_blocks as
// transformers does. Where Jinja leaves the template's own line breaks and indents in the text,
// they are part of it: the model was trained on them.
#include "typescript_tools.hpp"

#include "python_text.hpp"
#include "utf8.hpp"

#include <dflash/core/error.hpp>

#include <algorithm>
#include <fmt/format.h>

namespace dflash::data {

namespace {

constexpr std::int64_t kLongestInnerType = 50;  // characters; longer ones are written as any
// What stands between the colon and the type of a property, and before a variant's default.
constexpr std::string_view kPropertyBreak = "\n                ";
constexpr std::string_view kVariantIndent = "                    ";

[[noreturn]] void refuse_tool(std::string what) {
    throw Error(ErrorKind::Data,
                {.what = "a tool definition that the chat format gpt-oss has no form for: " +
                         std::move(what),
                 .where = {},
                 .cause = {},
                 .hint = {}});
}

// Truth of a value in Python; of an absent one, false.
bool is_true(const io::Json* value) {
    if (value == nullptr) {
        return false;
    }
    switch (value->kind()) {
        case io::Json::Kind::Null:
            return false;
        case io::Json::Kind::Bool:
            return value->as_bool();
        case io::Json::Kind::Number:
            return value->to_double() != 0;
        case io::Json::Kind::String:
            return !value->as_string().empty();
        case io::Json::Kind::Array:
            return !value->items().empty();
        case io::Json::Kind::Object:
            return !value->members().empty();
    }
    return false;
}

bool is_text(const io::Json* value, std::string_view text) {
    return value != nullptr && value->is_string() && value->as_string() == text;
}

const std::string& require_text(const io::Json* value, std::string_view what) {
    if (value == nullptr || !value->is_string()) {
        refuse_tool(fmt::format(
            "{} is {}, expected text", what, value == nullptr ? "missing" : value->kind_name()));
    }
    return value->as_string();
}

const std::vector<std::pair<std::string, io::Json>>& properties_of(const io::Json& properties) {
    if (!properties.is_object()) {
        refuse_tool(fmt::format("properties is {}, expected an object", properties.kind_name()));
    }
    return properties.members();
}

std::string join(const io::Json& list, std::string_view separator) {
    if (!list.is_array()) {
        refuse_tool(fmt::format("{} where a list is expected", list.kind_name()));
    }
    std::string text;
    for (std::size_t i = 0; i < list.items().size(); ++i) {
        text += i == 0 ? "" : separator;
        text += python_str(list.items()[i]);
    }
    return text;
}

// `name in required`, where absent and empty values contain nothing.
bool is_required(const std::string& name, const io::Json* required) {
    if (!is_true(required)) {
        return false;
    }
    if (required->is_array()) {
        return std::any_of(required->items().begin(),
                           required->items().end(),
                           [&](const io::Json& item) { return is_text(&item, name); });
    }
    if (required->is_object()) {
        return required->find(name) != nullptr;
    }
    if (required->is_string()) {
        return required->as_string().find(name) != std::string::npos;
    }
    refuse_tool(fmt::format("required is {}, expected a list", required->kind_name()));
}

std::string type_of(const io::Json& spec);

std::string or_null(const io::Json& spec) {
    return is_true(spec.find("nullable")) ? " | null" : "";
}

std::string array_type(const io::Json& spec) {
    const io::Json* items = spec.find("items");
    if (!is_true(items)) {
        return "any[]" + or_null(spec);
    }
    const io::Json* type = items->find("type");
    std::string inner;
    if (is_text(type, "string") || is_text(type, "boolean")) {
        inner = type->as_string();
    } else if (is_text(type, "number") || is_text(type, "integer")) {
        inner = "number";
    } else {
        inner = type_of(*items);
        if (inner == "object | object" || count_characters(inner) > kLongestInnerType) {
            inner = "any";
        }
    }
    return inner + "[]" + or_null(spec);
}

std::string variants_type(const io::Json& variants) {
    if (!variants.is_array()) {
        refuse_tool(fmt::format("oneOf is {}, expected a list", variants.kind_name()));
    }
    std::string text;
    for (std::size_t i = 0; i < variants.items().size(); ++i) {
        const io::Json& variant = variants.items()[i];
        text += type_of(variant);
        if (const io::Json* description = variant.find("description"); is_true(description)) {
            text += "// " + require_text(description, "the description of a variant");
        }
        if (const io::Json* value = variant.find("default")) {
            text += std::string(kVariantIndent) + "// default: " + python_json(*value);
        }
        text += i + 1 < variants.items().size() ? " | \n" : "";
    }
    return text;
}

std::string object_type(const io::Json& spec) {
    const io::Json* properties = spec.find("properties");
    if (!is_true(properties)) {
        return "object";
    }
    std::string text = "{\n";
    const auto& members = properties_of(*properties);
    for (std::size_t i = 0; i < members.size(); ++i) {
        const auto& [name, property] = members[i];
        text += name;
        text += is_required(name, spec.find("required")) ? "" : "?";
        text += ": " + std::string(kPropertyBreak) + type_of(property);
        text += i + 1 < members.size() ? ", " : "";
    }
    return text + "}";
}

// Recursion is bounded by the parser's limit of nesting.
std::string type_of(const io::Json& spec) {
    const io::Json* type = spec.find("type");
    if (is_text(type, "array")) {
        return array_type(spec);
    }
    if (type != nullptr && type->is_array() && !type->items().empty()) {
        return join(*type, " | ");
    }
    if (const io::Json* variants = spec.find("oneOf"); is_true(variants)) {
        return variants_type(*variants);
    }
    if (is_text(type, "string")) {
        const io::Json* choices = spec.find("enum");
        return is_true(choices) ? '"' + join(*choices, "\" | \"") + '"' : "string" + or_null(spec);
    }
    if (is_text(type, "number") || is_text(type, "integer")) {
        return "number";
    }
    if (is_text(type, "boolean")) {
        return "boolean";
    }
    return is_text(type, "object") ? object_type(spec) : "any";
}

std::string default_of(const io::Json& spec) {
    const io::Json* value = spec.find("default");
    if (value == nullptr) {
        return "";
    }
    if (is_true(spec.find("enum"))) {
        return ", // default: " + require_text(value, "the default of an enum");
    }
    if (is_true(spec.find("oneOf"))) {
        return "// default: " + require_text(value, "the default of a oneOf");
    }
    return ", // default: " + python_json(*value);
}

std::string function_type(const io::Json& function) {
    std::string text =
        "// " + require_text(function.find("description"), "the description of a function") + "\n";
    text += "type " + require_text(function.find("name"), "the name of a function") + " = ";
    const io::Json* parameters = function.find("parameters");
    const io::Json* properties = parameters == nullptr ? nullptr : parameters->find("properties");
    if (!is_true(properties)) {
        return text + "() => any;\n\n";
    }
    text += "(_: {\n";
    for (const auto& [name, spec] : properties_of(*properties)) {
        if (const io::Json* description = spec.find("description"); is_true(description)) {
            text += "// " + require_text(description, "the description of a parameter") + "\n";
        }
        text += name;
        text += is_required(name, parameters->find("required")) ? "" : "?";
        text += ": " + type_of(spec) + default_of(spec) + ",\n";
    }
    return text + "}) => any;\n\n";
}

}  // namespace

std::string typescript_tools(const io::Json& tools) {
    std::string text = "## functions\n\nnamespace functions {\n\n";
    for (const io::Json& tool : tools.items()) {
        const io::Json* function = tool.find("function");
        if (function == nullptr || !function->is_object()) {
            refuse_tool("it has no function");
        }
        text += function_type(*function);
    }
    return text + "} // namespace functions";
}

}  // namespace dflash::data
