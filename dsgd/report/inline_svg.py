"""Put figures into a page: as elements that take the page's width, its letters' colour and its colours in the dark."""

from __future__ import annotations

import colorsys
import re

import numpy as np
from matplotlib.colors import to_hex, to_rgb
from matplotlib.markers import MarkerStyle

_COLOUR = re.compile(r"#[0-9a-f]{6}\b")
_PLACE = re.compile(r'\bid="([^"]+)"|(href="#|url\(#)')


def inline(svg: str, number: int) -> str:
    """Return an SVG document as an element: without its prolog and its metadata, which name addresses, and with its
    colours as variables of the page. number: unlike that of any other figure of the page, before its names."""
    element = re.sub(r"<metadata>.*?</metadata>", "", svg[svg.index("<svg") :], flags=re.DOTALL)
    element = _PLACE.sub(lambda match: f'id="f{number}-{match[1]}"' if match[1] else f"{match[2]}f{number}-", element)

    def themed(style: re.Match[str]) -> str:
        return _COLOUR.sub(lambda match: f"var(--c-{match[0][1:]}, {match[0]})", style[0])

    return re.sub(r'style="[^"]*"', themed, element)


def dark_colours(elements: str) -> str:
    """Return the variables of all colours of inlined figures for a dark page, as CSS declarations."""
    colours = sorted(set(re.findall(r"var\(--c-([0-9a-f]{6}),", elements)))
    return " ".join(f"--c-{colour}: {_dark(f'#{colour}')};" for colour in colours)


def on_dark(colour: str) -> str:
    """Return the colour for a dark ground: the same hue, as light as the ground is dark. colour: `#rrggbb`."""
    hue, lightness, saturation = colorsys.rgb_to_hls(*to_rgb(colour))
    return to_hex(colorsys.hls_to_rgb(hue, max(lightness, min(0.9, max(0.62, 1 - lightness))), saturation))


def marker_path(marker: str) -> str:
    """Return a marker of matplotlib as a path of SVG, from -0.5 to 0.5."""
    style = MarkerStyle(marker)
    polygons = style.get_path().transformed(style.get_transform()).to_polygons()
    return "".join("M" + "L".join(f"{x:.3g} {-y:.3g}" for x, y in np.asarray(polygon)) + "Z" for polygon in polygons)


def _dark(colour: str) -> str:
    """Return a colour for a dark ground: white becomes the ground, greys are as far from it as they were from white."""
    hue, lightness, saturation = colorsys.rgb_to_hls(*to_rgb(colour))
    if colour == "#ffffff":
        return "var(--back)"
    if saturation == 0:
        return to_hex(colorsys.hls_to_rgb(hue, min(0.9, 1.08 - lightness), 0.0))
    return on_dark(colour)
