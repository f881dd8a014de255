"""HTML in which everything is escaped unless it was made here, and the shell of a page that loads nothing from elsewhere."""

import html
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from dflash.report.theme import DARK, LIGHT, write_bytes

MAX_PAGE_BYTES = 10 * 1024 * 1024
# Characters that HTML forbids, and lone surrogates, which have no UTF-8.
_UNPRINTABLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")
_VOID = {"img", "meta", "link", "br", "hr"}

_STYLE = f"""
:root {{ color-scheme: light dark; --back: {LIGHT.background}; --ink: {LIGHT.ink}; --faint: {LIGHT.faint};
  --panel: #f4f6f8; --link: #005a8f; --good: #00674a; --watch: #8a5300; --bad: {LIGHT.bad}; }}
@media screen and (prefers-color-scheme: dark) {{ :root {{ --back: {DARK.background}; --ink: {DARK.ink}; --faint: {DARK.faint};
  --panel: #20242c; --link: #8cc8ff; --good: #4fd6ad; --watch: #ffbf66; --bad: {DARK.bad}; }} }}
* {{ box-sizing: border-box; }}
body {{ margin: 0 auto; padding: 1.2rem 1rem 4rem; max-width: 58rem; background: var(--back); color: var(--ink);
  font: 16px/1.5 system-ui, sans-serif; overflow-wrap: anywhere; }}
h1 {{ font-size: 1.7rem; line-height: 1.2; margin: .4rem 0; }}
h2 {{ font-size: 1.25rem; margin: 2.4rem 0 .6rem; border-bottom: 1px solid var(--faint); padding-bottom: .2rem; }}
h3 {{ font-size: 1.02rem; margin: 1.4rem 0 .4rem; }}
a {{ color: var(--link); }}
nav {{ font-size: .92rem; }} nav a {{ margin-right: .9rem; white-space: nowrap; }}
figure {{ margin: 1rem 0; }} figcaption, .small {{ font-size: .87rem; }}
.scroll {{ overflow-x: auto; }}
@media screen and (max-width: 36rem) {{ .chart figcaption::before {{ content: "Scroll the figure sideways \\2194. "; font-weight: 600; }}
  .scroll:has(> table) {{ background: linear-gradient(to right, var(--back) 30%, transparent) left, linear-gradient(to left, var(--back) 30%, transparent)
    right, linear-gradient(to left, var(--faint), transparent) right; background-size: 2rem 100%, 2rem 100%, .6rem 100%;
    background-repeat: no-repeat; background-attachment: local, local, scroll; }} }}
.chart img {{ display: block; width: 100%; min-width: 34rem; height: auto; }}
img.dark {{ display: none !important; }}
@media screen and (prefers-color-scheme: dark) {{ .chart img.light {{ display: none !important; }}
  .chart img.dark {{ display: block !important; }} }}
table {{ border-collapse: collapse; font-size: .9rem; margin: .6rem 0; }}
th, td {{ text-align: left; padding: .25rem .7rem .25rem 0; vertical-align: top; border-bottom: 1px solid var(--faint);
  overflow-wrap: normal; }}
td.number, th.number {{ text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }}
td.long {{ overflow-wrap: anywhere; min-width: 12rem; }}
caption {{ text-align: left; font-size: .87rem; padding-bottom: .3rem; }}
.verdict {{ border-left: .4rem solid var(--faint); background: var(--panel); padding: .6rem .9rem; margin: .8rem 0; }}
.healthy {{ border-color: var(--good); }} .watch {{ border-color: var(--watch); }} .unhealthy {{ border-color: var(--bad); }}
.healthy b {{ color: var(--good); }} .watch b {{ color: var(--watch); }} .unhealthy b {{ color: var(--bad); }}
pre {{ background: var(--panel); padding: .7rem; white-space: pre-wrap; font-size: .85rem; overflow-wrap: anywhere; }}
pre .run {{ border-radius: .15rem; padding: .05rem 0; border-bottom: 2px solid var(--faint); }}
pre .on {{ background: rgba(86, 180, 233, .35); }}
details summary {{ cursor: pointer; }}
@media print {{ body {{ max-width: none; padding: 0; font-size: 10.5pt; }} figure, table, .verdict {{ break-inside: avoid; }}
  h2, h3 {{ break-after: avoid; }} .chart img {{ min-width: 0; }} nav {{ display: none; }} .scroll {{ overflow: visible; }} }}
"""


class Markup(str):
    """Text that is HTML already. Any other text is escaped where it enters an element."""


def text(value: object) -> Markup:
    """Any value as escaped text; what cannot be shown becomes U+FFFD."""
    if isinstance(value, Markup):
        return value
    return Markup(html.escape(_UNPRINTABLE.sub("\ufffd", str(value))))


def element(name: str, /, *children: object, **attributes: object) -> Markup:
    """An element with escaped children and attributes (`class_` stands for `class`)."""
    inside = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{text(value)}"' for key, value in attributes.items()
    )
    if name in _VOID:
        return Markup(f"<{name}{inside}>")
    return Markup(f"<{name}{inside}>{join(children)}</{name}>")


def join(children: Iterable[object]) -> Markup:
    """Several pieces one after another."""
    return Markup("".join(text(child) for child in children))


def section(anchor: str, title: str, *children: object) -> Markup:
    """A part of the page with a heading to jump to."""
    return element("section", element("h2", title), *children, id=anchor)


def table(
    header: Sequence[str], rows: Iterable[Sequence[object]], *, caption: str = "", numbers: Iterable[int] = ()
) -> Markup:
    """A table that scrolls sideways where it is too wide.

    Args:
        header: names of the columns, with their units.
        rows: the cells.
        caption: what the table shows.
        numbers: positions of the columns that are set flush right.
    """
    right = set(numbers)
    head = [
        element("th", name, scope="col", class_="number" if k in right else "text")
        for k, name in enumerate(header)
    ]
    body = [
        element(
            "tr",
            *[
                element("td", cell, class_="number" if k in right else _width(cell))
                for k, cell in enumerate(row)
            ],
        )
        for row in rows
    ]
    title = [element("caption", caption)] if caption else []
    grid = element("table", *title, element("thead", element("tr", *head)), element("tbody", *body))
    return element("div", grid, class_="scroll", tabindex=0)


def _width(cell: object) -> str:
    return "long" if len(str(cell)) > 40 else "text"


def facts(pairs: Mapping[str, object]) -> Markup:
    """A table of two columns: what, and its value."""
    rows = [
        element("tr", element("th", name, scope="row"), element("td", value)) for name, value in pairs.items()
    ]
    return element("div", element("table", element("tbody", *rows)), class_="scroll", tabindex=0)


def chart(light: str, dark: str, *, alt: str, caption: str) -> Markup:
    """A figure in both themes, of which the page shows the one that fits.

    Args:
        light, dark: the pictures, as `data:` addresses.
        alt: what the figure shows, for who cannot see it.
        caption: how to read it.
    """
    pictures = [
        element("img", src=Markup(light), alt=alt, class_="light"),
        element("img", src=Markup(dark), alt=alt, class_="dark"),
    ]
    box = element("div", *pictures, class_="scroll", tabindex=0)
    return element("figure", box, element("figcaption", caption), class_="chart")


def write_page(path: Path, title: str, lead: object, sections: Sequence[Markup]) -> None:
    """Write a page, atomically.

    Raises:
        ValueError: the page would be larger than 10 MB.
    """
    links = []
    for each in sections:
        found = re.match(r'<section id="([^"]+)"><h2>(.*?)</h2>', each)
        if found:
            links.append(element("a", Markup(found[2]), href=f"#{found[1]}"))
    policy = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=policy),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("title", title),
        element("link", rel="icon", href="data:,"),
        element("style", Markup(_STYLE)),
    )
    body = element("body", element("h1", title), lead, element("nav", *links), element("main", *sections))
    content = ("<!doctype html>\n" + element("html", head, body, lang="en") + "\n").encode("utf-8")
    if len(content) > MAX_PAGE_BYTES:
        raise ValueError(
            f"{path} would have {len(content):,} bytes, more than the {MAX_PAGE_BYTES:,} a page may have; "
            "lower report.sample_decodes or compare fewer experiments at once"
        )
    write_bytes(path, content)
