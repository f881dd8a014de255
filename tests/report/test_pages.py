"""Pages: what they hold, what they escape, and how they behave in a browser."""

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import polars as pl
import pytest

from dflash.report import markup
from dflash.report.acceptance_section import decodes_section
from dflash.report.batching_section import NUMBERS
from dflash.report.comparison_page import draw_comparison_page
from dflash.report.experiment_page import Experiment, draw_experiment_page, read_decodes, summary
from dflash.report.preflight_section import preflight_section
from dflash.report.tables import read_run
from dflash.report.training_section import machine_section
from tests.report.browser import CHROMIUM, Browser
from tests.report.test_comparison import write_sides
from tests.report.world import write_world


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Experiment:
    world = write_world(tmp_path_factory.mktemp("world"))
    return replace(
        world, settings={**world.settings, "report": {"title": "<b>Mine</b>", "sample_decodes": 2}}
    )


@pytest.fixture(scope="module")
def page(world: Experiment, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return draw_experiment_page(world, tmp_path_factory.mktemp("a page's folder"))


@pytest.fixture(scope="module")
def comparison(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("comparison")
    return draw_comparison_page(*write_sides(root, 0.4), root / "out")


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    if CHROMIUM is None:
        pytest.skip("there is no chromium; apt-get install chromium")
    with Browser(tmp_path_factory.mktemp("profile")) as browser:
        yield browser


class Reader(HTMLParser):
    """Collects the elements of a page, and checks that they nest."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in {"img", "meta", "link", "br"}:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def elements_of(page: Path) -> list[tuple[str, dict[str, str | None]]]:
    reader = Reader()
    reader.feed(page.read_text(encoding="utf-8"))
    assert not reader.open
    return reader.elements


def test_the_page_needs_nothing_else(page: Path) -> None:
    elements = elements_of(page)
    assert page.stat().st_size < markup.MAX_PAGE_BYTES
    assert not {"script", "iframe", "object", "form"} & {tag for tag, _ in elements}
    for _, attributes in elements:
        for name in ("src", "href"):
            assert (attributes.get(name) or "data:").startswith(("data:", "#"))


def test_every_figure_has_two_themes_words_and_files(page: Path) -> None:
    images = [attributes for tag, attributes in elements_of(page) if tag == "img"]
    assert len(images) >= 24
    assert all(len(each["alt"] or "") > 30 for each in images)
    assert sum(each["class"] == "light" for each in images) == sum(each["class"] == "dark" for each in images)
    stems = {path.stem for path in (page.parent / "figures").iterdir()}
    assert len(stems) == len(images)
    assert all(
        (page.parent / "figures" / f"{stem}{end}").stat().st_size > 500
        for stem in stems
        for end in (".svg", ".png")
    )


def test_sections_are_reached(page: Path) -> None:
    elements = elements_of(page)
    links = {(attributes["href"] or "")[1:] for tag, attributes in elements if tag == "a"}
    ids = {attributes["id"] for tag, attributes in elements if tag == "section"}
    assert (
        links == ids and {"loss", "plan", "machine", "acceptance", "decodes", "config", "provenance"} <= ids
    )


def test_what_users_wrote_is_escaped(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert "<script>" not in text
    assert (
        "&lt;script&gt;alert(&#x27;x&#x27;)&lt;/script&gt; &amp; &quot;quoted&quot; $x_1$ \ufffd \ufffd 日本語"
        in text
    )


def test_preflight_says_what_is_wrong_and_what_helps(page: Path) -> None:
    rows = re.findall(r"<tr>.*?</tr>", page.read_text(encoding="utf-8").split('id="preflight"')[1])
    disk, clock = rows[1:3]
    assert ">good<" in disk and "9 GB free &lt;here&gt;" in disk and "free space" not in disk
    assert ">BAD<" in clock and "it is 1970" in clock and "set the &lt;clock&gt;" in clock


def test_a_finding_without_a_remedy_is_named(tmp_path: Path) -> None:
    path = tmp_path / "preflight.json"
    with pytest.raises(ValueError, match="is missing; run the stage run_preflight again"):
        preflight_section(path)
    path.write_text('[{"name": "disk", "ok": true, "found": "9 GB"}]')
    with pytest.raises(ValueError, match="a finding has no key 'remedy'"):
        preflight_section(path)


def test_summary_holds_the_numbers_of_the_tables(world: Experiment, page: Path) -> None:
    metrics = pl.read_parquet(world.stages["fit"] / "metrics.parquet")
    text = page.read_text(encoding="utf-8")
    assert f"{len(metrics)} steps, {metrics['useful_tokens'].sum() / 1e3:.3g}k useful" in text
    assert (
        "acceptance length 2.50 (2.40 to 2.60) tokens per target forward, counted up to the first loop "
        "(25.0% of the tokens); whole texts 2.50 (2.40 to 2.60) (trained, temperature 0, stdlib)" in text
    )
    assert "bucketed, 4 shapes an epoch (4 used)" in text


def test_numbers_of_the_plan_have_names_with_units(world: Experiment, page: Path) -> None:
    quality = json.loads((world.stages["build_plan"] / "quality.json").read_text())
    assert {name for name, value in quality.items() if isinstance(value, int | float)} <= set(NUMBERS)
    text = page.read_text(encoding="utf-8")
    assert "tokens of an epoch with padding</td>" in text and ">padded tokens</td>" not in text


def test_ranks_that_play_both_roles_are_named_in_words(tmp_path: Path) -> None:
    world = write_world(tmp_path / "world", steps=24)
    run = read_run(world.stages["fit"])
    section = machine_section(
        tmp_path / "figures", replace(run, ranks=run.ranks.with_columns(role=pl.lit("both")))
    )
    assert '<td class="text">target and drafter</td>' in section and ">both<" not in section


def test_unknown_energy_is_unknown(tmp_path: Path) -> None:
    world = write_world(tmp_path / "world", steps=24, energy=False)
    run = read_run(world.stages["fit"])
    acceptance = pl.read_parquet(world.stages["evaluate"] / "acceptance.parquet")
    quality = json.loads((world.stages["build_plan"] / "quality.json").read_text())
    lead = summary(world, run, acceptance, quality)
    assert re.search(r'<th scope="row">energy</th><td>unknown</td>', lead)
    assert "Power and energy unknown: no energy counter was readable." in machine_section(tmp_path, run)


def test_titles_are_the_users(page: Path) -> None:
    assert "<h1>&lt;b&gt;Mine&lt;/b&gt;: experiment report</h1>" in page.read_text(encoding="utf-8")


def test_no_decode_is_shown_where_none_is_wanted(world: Experiment) -> None:
    assert "Prompt 1:" not in decodes_section(read_decodes(world.stages["evaluate"] / "decodes.jsonl"), 0)


@pytest.mark.parametrize(
    ("where", "what"),
    [
        ("lengths", "Histogram of .* sample lengths .* upper bounds of 4 buckets: 64, 128, 256, 512"),
        ("lengths", "Padding efficiency over the number of buckets; 4 buckets reach 87.5%"),
        ("plan", "bucketed 0.9, pooled 0.93, packed 0.97, sorted 0.99, random 0.5"),
        ("plan", "share of each of 4 buckets in the useful tokens of the first steps"),
        ("loss", "Loss of 96 steps over useful tokens.*held-out loss from .* to .* nats"),
        ("heldout", "Teacher-forced acceptance length on held-out samples"),
        ("machine", "useful and .* padded tokens/s over the whole run"),
        ("machine", "busy 60%, blocked on empty 30%, blocked on full 10%"),
        ("machine", "Power by rank and energy per useful token; .* J per useful token"),
        ("acceptance", "trained: stdlib, temperature 0 2.50, stdlib, temperature 1 2.20"),
        ("acceptance", "accepted by slot of the block.*trained, temperature 0, stdlib: 50%"),
        ("config", "training.learning_rate"),
        ("provenance", "0000000000000000"),
        ("provenance", '>numpy</td><td class="text">2<'),
    ],
)
def test_the_page_shows(page: Path, where: str, what: str) -> None:
    section = page.read_text(encoding="utf-8").split(f'<section id="{where}">')[1].split("</section>")[0]
    # Figures are long, and not words.
    assert re.search(what, re.sub(r'src="data:[^"]*"', "", section).replace("\n", " "))


@pytest.mark.parametrize("fact", ["target", "data", "plan", "training", "result", "time", "energy"])
def test_the_summary_knows(page: Path, fact: str) -> None:
    found = re.search(f'<th scope="row">{fact}</th><td>(.*?)</td>', page.read_text(encoding="utf-8"))
    assert found and found[1] not in ("", "unknown")


def test_accepted_runs_have_shades_in_turn(world: Experiment, page: Path) -> None:
    decodes = read_decodes(world.stages["evaluate"] / "decodes.jsonl")
    section = page.read_text(encoding="utf-8").split('<section id="decodes">')[1].split("</section>")[0]
    spans = re.findall(r'<span class="(run|run on)">(.*?)</span>', section)
    wanted = [
        ("run on" if number % 2 else "run", piece)
        for each in decodes[:2]
        for number, piece in enumerate(each["pieces"])
    ]
    assert spans == wanted


def test_the_same_tables_give_the_same_bytes(world: Experiment, page: Path, tmp_path: Path) -> None:
    again = draw_experiment_page(world, tmp_path)
    assert again.read_bytes() == page.read_bytes()
    assert (tmp_path / "figures" / "loss-dark.png").read_bytes() == (
        page.parent / "figures" / "loss-dark.png"
    ).read_bytes()


def test_a_missing_column_is_named(tmp_path: Path) -> None:
    world = write_world(tmp_path / "world")
    path = world.stages["fit"] / "heldout.parquet"
    pl.read_parquet(path).drop("acceptance").write_parquet(path)
    with pytest.raises(
        ValueError, match=r"heldout.parquet has no column 'acceptance'; it has step, loss, acc_slot_1"
    ):
        draw_experiment_page(world, tmp_path / "out")


def test_a_missing_table_is_named(tmp_path: Path) -> None:
    world = write_world(tmp_path / "world")
    (world.stages["build_plan"] / "policies.parquet").unlink()
    with pytest.raises(
        ValueError, match=r"build_plan/policies.parquet is missing; run the stage build_plan again"
    ):
        draw_experiment_page(world, tmp_path / "out")


@pytest.mark.parametrize(
    ("content", "message"),
    [("[]", "holds a list, not an object"), ("{}", "has no key 'widths'; it has nothing")],
)
def test_a_wrong_record_is_named(tmp_path: Path, content: str, message: str) -> None:
    world = write_world(tmp_path / "world")
    (world.stages["choose_boundaries"] / "boundaries.json").write_text(content)
    with pytest.raises(ValueError, match=message):
        draw_experiment_page(world, tmp_path / "out")


def test_a_wrong_decode_is_named(tmp_path: Path) -> None:
    world = write_world(tmp_path / "world")
    (world.stages["evaluate"] / "decodes.jsonl").write_text('{"prompt": "a", "text": "b", "runs": []}\n')
    with pytest.raises(ValueError, match=r"decodes.jsonl, line 1: no key 'identical'"):
        draw_experiment_page(world, tmp_path / "out")


def test_a_page_has_a_limit(tmp_path: Path) -> None:
    huge = markup.section("a", "b", "x" * markup.MAX_PAGE_BYTES)
    with pytest.raises(ValueError, match="lower report.sample_decodes or compare fewer experiments"):
        markup.write_page(tmp_path / "page.html", "title", "", [huge])
    assert not list(tmp_path.iterdir())


@pytest.mark.full
def test_a_long_run_has_a_page_below_the_limit(tmp_path: Path) -> None:
    world = write_world(tmp_path / "world", steps=12_000)
    page = draw_experiment_page(world, tmp_path / "out")
    assert page.stat().st_size < markup.MAX_PAGE_BYTES / 2


@pytest.mark.parametrize("width", [1100, 390])
@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("which", ["page", "comparison"])
def test_in_a_browser(
    browser: Browser, request: pytest.FixtureRequest, tmp_path: Path, which: str, dark: bool, width: int
) -> None:
    path: Path = request.getfixturevalue(which)
    opened = browser.open(path, dark=dark, width=width, screenshot=tmp_path / "screenshot.png")
    assert opened.console == []
    assert [url for url in opened.requests if not url.startswith("data:")] == [path.as_uri()]
    assert all(image["width"] > 0 for image in opened.images)
    shown = [image for image in opened.images if image["shown"] > 0]
    assert {image["theme"] for image in shown} == {"dark" if dark else "light"}
    assert len(shown) * 2 == len(opened.images)
    assert min(image["shown"] for image in shown) >= 500
    assert opened.overflow <= 0
    hint = browser.evaluate(
        "getComputedStyle(document.querySelector('.chart figcaption'), '::before').content"
    )
    assert ("Scroll the figure sideways" in hint) == (width < 500)
    assert opened.background == ("rgb(23, 26, 32)" if dark else "rgb(255, 255, 255)")


@pytest.mark.parametrize("which", ["page", "comparison"])
def test_paper_is_light(browser: Browser, request: pytest.FixtureRequest, which: str) -> None:
    """Also from a dark screen: light figures that fit the paper, no links to jump by."""
    path: Path = request.getfixturevalue(which)
    opened = browser.open(path, dark=True, width=390, media="print")
    assert opened.background == "rgb(255, 255, 255)" and opened.overflow <= 0
    shown = [image for image in opened.images if image["shown"] > 0]
    assert {image["theme"] for image in shown} == {"light"} and len(shown) * 2 == len(opened.images)
    assert max(image["shown"] for image in shown) <= 390
    assert browser.evaluate("getComputedStyle(document.querySelector('nav')).display") == "none"
