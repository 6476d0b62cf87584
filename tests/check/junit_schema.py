"""What Jenkins takes as a JUnit report: elements, their attributes and children, by its xunit plugin's junit-10.xsd.

Written from that schema (jenkinsci/xunit-plugin 031e285): an attribute with `!` is required.
"""

from collections.abc import Iterator
from xml.etree import ElementTree as ET

_PROBLEM = ("type", "message")
_SCHEMA: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "testsuites": (("name", "time", "tests", "failures", "errors"), ("testsuite",)),
    "testsuite": (
        (
            *("name!", "tests!", "failures!", "errors!", "group", "time", "skipped", "timestamp", "hostname", "id"),
            *("package", "file", "log", "url"),
        ),
        ("testsuite", "properties", "testcase", "system-out", "system-err"),
    ),
    "testcase": (
        ("name!", "time", "classname", "group"),
        ("skipped", "error", "failure", "system-out", "system-err"),
    ),
    "failure": (_PROBLEM, ()),
    "error": (_PROBLEM, ()),
    "skipped": (_PROBLEM, ()),
    "system-out": ((), ()),
    "system-err": ((), ()),
    "properties": ((), ("property",)),
    "property": (("name!", "value!"), ()),
}
_MIXED = ("failure", "error", "skipped", "system-out", "system-err")


def violations(element: ET.Element) -> Iterator[str]:
    """What a report has that the schema does not allow, or lacks."""
    if element.tag not in _SCHEMA:
        yield f"element {element.tag}"
        return
    attributes, children = _SCHEMA[element.tag]
    allowed = {name.rstrip("!") for name in attributes}
    yield from (f"{element.tag}: attribute {name}" for name in element.attrib if name not in allowed)
    yield from (
        f"{element.tag}: no {name[:-1]}"
        for name in attributes
        if name.endswith("!") and name[:-1] not in element.attrib
    )
    if element.tag not in _MIXED and (element.text or "").strip():
        yield f"{element.tag}: text"
    for child in element:
        if child.tag not in children:
            yield f"{element.tag}: child {child.tag}"
        if (child.tail or "").strip():
            yield f"{element.tag}: text"
        yield from violations(child)
