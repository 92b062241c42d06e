"""Loads untrusted YAML: plain values only, with a limit on the number of values that aliases can expand to."""

from __future__ import annotations

from typing import Any

import yaml

MOST_VALUES = 100_000
"""Maximum number of values in one document. A value counts once more for each of its aliases."""


def load(text: str, loader: type[yaml.SafeLoader] = yaml.SafeLoader) -> Any:
    """Return the document in a YAML text.

    Raises:
        ValueError: the text is not valid YAML, is nested too deeply, or its aliases repeat more than MOST_VALUES
            values.
    """
    try:
        reader = loader(text)
        node = reader.get_single_node()
        if node is None:
            return None
        _count(node, {})
        return reader.construct_document(node)
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _count(node: yaml.Node, known: dict[int, int]) -> int:
    """Count the values of a node. ``known`` has the counts of earlier nodes, and 0 for enclosing nodes."""
    if id(node) in known:
        if not known[id(node)]:
            raise ValueError(f"line {node.start_mark.line + 1}: an alias inside its own anchor")
        return known[id(node)]
    known[id(node)] = 0
    children: list[yaml.Node] = []
    if isinstance(node, yaml.MappingNode):
        children = [part for pair in node.value for part in pair]
    elif isinstance(node, yaml.SequenceNode):
        children = node.value
    total = 1 + sum(_count(child, known) for child in children)
    if total > MOST_VALUES:
        raise ValueError(f"line {node.start_mark.line + 1}: aliases repeat more than {MOST_VALUES} values")
    known[id(node)] = total
    return total
