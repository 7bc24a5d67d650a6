"""The straight pieces of an SVG's lines, and where they cross."""

import re
from itertools import combinations, pairwise
from xml.etree import ElementTree

SVG = "{http://www.w3.org/2000/svg}"


def wires(root, *classes):
    """Each line with all the classes, as the list of its points; a bend stands for its corner."""
    found = []
    for shape in root.iter():
        if not {"wire", *classes} <= set(shape.get("class", "").split()):
            continue
        if shape.tag == f"{SVG}line":
            found.append([(float(shape.get(f"x{i}")), float(shape.get(f"y{i}"))) for i in (1, 2)])
        elif shape.tag == f"{SVG}path":
            numbers = [float(n) for n in re.findall(r"-?[\d.]+", shape.get("d"))]
            found.append(list(zip(numbers[::2], numbers[1::2], strict=True)))
    return found


def crossings(lines):
    """Pairs of lines that cross; lines that only touch do not."""
    return [(a, b) for a, b in combinations(lines, 2) if any(_cross(p, q) for p in _pieces(a) for q in _pieces(b))]


def _pieces(points):
    return list(pairwise(points))


def _cross(one, other):
    def side(a, b, c):
        turn = (b[0] - a[0]) * (c[1] - a[1]) - (b[1] - a[1]) * (c[0] - a[0])
        return (turn > 1e-6) - (turn < -1e-6)

    (a, b), (c, d) = one, other
    return side(a, b, c) * side(a, b, d) < 0 and side(c, d, a) * side(c, d, b) < 0


def parsed(text):
    """The root of an SVG text, checked to be well-formed XML."""
    return ElementTree.fromstring(text)


def words(root):
    """The texts of an SVG."""
    return [element.text or "" for element in root.iter(f"{SVG}text")]


def facts(root):
    """The facts of the parts of an SVG."""
    return [group.find(f"{SVG}title").text for group in root.iter(f"{SVG}g")]
