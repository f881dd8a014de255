"""Snakemake's own report carries our pages with their captions."""

from pathlib import Path

from tests.workflow.tiny import Project


def test_pages_are_in_snakemakes_report(tmp_path: Path) -> None:
    project = Project(tmp_path / "a user's folder")
    project.run("train")
    project.run("train", "--report", "all.html")
    text = (project.folder / "all.html").read_text()
    assert "results/default/draw_report/report.html" in text
    assert "One self-contained page." in text
