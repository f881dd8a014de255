"""What works again after which change: every row runs the real Snakemake, one after the other in one project."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dflash.store.content import sha256_of
from tests.workflow.tiny import Project

AFTER_FIT = {"evaluate", "export_drafter", "draw_report"}
AFTER_PLAN = {"run_preflight", "fit", *AFTER_FIT}
AFTER_BOUNDARIES = {"build_plan", *AFTER_PLAN}
AFTER_LENGTHS = {"choose_boundaries", *AFTER_BOUNDARIES}
AFTER_ENCODE = {"report_data", "measure_lengths", *AFTER_LENGTHS}
ALL = {"encode", *AFTER_ENCODE}
TEXT = "dflash/tiny/text.py"
NUMBERS = "dflash/tiny/numbers.py"


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    project = Project(tmp_path_factory.mktemp("work") / "it's a project")
    # Once as a user calls it: the command of the environment, without activating it.
    (project.folder / "config").mkdir()
    project.start("--version").join()
    words = [str(Path(sys.executable).with_name("snakemake")), "--cores", "2", "train"]
    environment = {"PATH": "/usr/bin:/bin", "HOME": os.environ.get("HOME", "/")}
    done = subprocess.run(
        words, cwd=project.folder, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert project.worked() == ALL | {"encode file one.txt", "encode file two.txt"}
    yield project
    assert not project.processes()


def keep_mtime(project: Project, name: str, old: str, new: str) -> None:
    status = (project.folder / name).stat()
    project.edit(name, old, new)
    os.utime(project.folder / name, ns=(status.st_atime_ns, status.st_mtime_ns))


def touch_everything(project: Project) -> None:
    for folder in ("data", "dflash", "workflow_scripts", "config", "results"):
        for path in (project.folder / folder).rglob("*.*"):
            if path.is_file() and ".request" not in path.parts:
                path.touch()


def swap_values(project: Project) -> None:
    batching = project.config["batching"]
    project.configure("batching", num_buckets=batching["max_buckets"], max_buckets=batching["num_buckets"])


def reorder_keys(project: Project) -> None:
    project.config = {key: project.config[key] for key in reversed(project.config)}
    batching = project.config["batching"]
    project.config["batching"] = {key: batching[key] for key in reversed(batching)}


def edit_in_place(project: Project, name: str) -> None:
    """Edit without a new inode, as many editors do."""
    with (project.folder / name).open("r+") as file:
        file.write("edited by hand")


def damage_store(project: Project) -> None:
    for path in project.folder.glob(".store/build_plan/*/result/build_plan.txt"):
        path.write_text("damaged")


def remove_provenance(project: Project) -> None:
    shutil.rmtree(project.folder / ".snakemake")


# what is done, the arguments of the run, the exact set of what does work
Row = tuple[str, Callable[[Project], object], str, set[str]]
ROWS: list[Row] = [
    ("nothing", lambda p: None, "train", set()),
    ("touch everything", touch_everything, "train", set()),
    ("edit a file", lambda p: p.edit("data/one.txt", "c", "c d"), "train", ALL | {"encode file one.txt"}),
    ("edit, same words", lambda p: p.edit("data/one.txt", " ", "  "), "train", {"encode", "encode file one.txt"}),
    ("edit, old mtime", lambda p: keep_mtime(p, "data/two.txt", "e f", "e_f"), "train", ALL | {"encode file two.txt"}),
    ("code, old mtime", lambda p: keep_mtime(p, "dflash/tiny/drawing.py", "= 1", "= 2"), "train", {"draw_report"}),
    ("two values swapped", swap_values, "train", {*AFTER_LENGTHS}),
    ("key order", reorder_keys, "train", set()),
    ("unrelated module", lambda p: p.edit("dflash/tiny/unrelated.py", "= 1", "= 2"), "train", set()),
    ("another section's config", lambda p: p.edit("dflash/config/report.py", "class Report", "EXTRA = 1\n\n\nclass Report"), "train", set()),
    ("store code", lambda p: p.edit("dflash/store/reason.py", "MAX_TEXT = 60", "MAX_TEXT = 61"), "train", set()),
    ("docstring and comment", lambda p: p.edit(NUMBERS, '"""numbers"""', '"""Numbers."""\n# a comment\n'), "train", set()),
    ("shared module", lambda p: p.edit(NUMBERS, "= 1", "= 2"), "train", ALL | {"encode file one.txt", "encode file two.txt"}),
    ("code without effect", lambda p: p.edit(TEXT, "CONSTANT", "OTHER = 1\nCONSTANT"), "train", {"encode", "report_data", "encode file one.txt", "encode file two.txt"}),
    ("report-only edit", lambda p: p.edit("dflash/tiny/drawing.py", "= 2", "= 3"), "train", {"draw_report"}),
    ("report setting", lambda p: p.configure("report", title="Tiny"), "train", {"draw_report"}),
    ("evaluation setting", lambda p: p.configure("evaluation", num_prompts=3), "train", {"evaluate", "draw_report"}),
    ("export setting", lambda p: p.configure("export", dtype="float32"), "train", {"export_drafter", "draw_report"}),
    ("execution setting", lambda p: p.configure("runtime", num_threads=1), "train", set()),
    ("intermediate deleted", lambda p: (p.folder / "results/default/choose_boundaries.json").unlink(), "train", set()),
    ("result edited by hand", lambda p: edit_in_place(p, "results/default/build_plan/build_plan.txt"), "train", set()),
    ("manifest edited by hand", lambda p: p.edit("results/default/fit.json", "fit", "fat"), "train", set()),
    ("store damaged", damage_store, "train", {"build_plan"}),
    ("store damaged again", damage_store, "train", {"build_plan"}),
    ("store gone", lambda p: shutil.rmtree(p.folder / ".store/evaluate"), "train", {"evaluate"}),
    ("store gone again", lambda p: shutil.rmtree(p.folder / ".store/evaluate"), "train", {"evaluate"}),
    ("published file removed", lambda p: (p.folder / "results/default/fit/fit.txt").unlink(), "train", set()),
    ("published file removed again", lambda p: (p.folder / "results/default/fit/fit.txt").unlink(), "train", set()),
    (".snakemake removed", remove_provenance, "train", set()),
    (".snakemake removed, one edit", lambda p: (remove_provenance(p), p.configure("evaluation", num_prompts=4)), "train", {"evaluate", "draw_report"}),
    ("forced", lambda p: None, "-R build_plan", set()),
    ("policy, until the plan", lambda p: p.configure("batching", policy="packed"), "--until build_plan", {"build_plan"}),
    ("the rest", lambda p: None, "train", AFTER_PLAN),
    ("policy back", lambda p: p.configure("batching", policy="bucketed"), "train", set()),
    ("policy forth", lambda p: p.configure("batching", policy="packed"), "train", set()),
    ("new file, plan", lambda p: p.write("data/three.txt", "h\n"), "plan", {"encode", "encode file three.txt", "measure_lengths", "choose_boundaries", "build_plan"}),
    ("new file, train", lambda p: None, "train", {"report_data", *AFTER_PLAN}),
    ("file removed", lambda p: (p.folder / "data/two.txt").unlink(), "train", ALL),
    ("file back", lambda p: p.write("data/two.txt", "d e_f g\n"), "train", set()),
    ("data moved", lambda p: ((p.folder / "data").rename(p.folder / "moved"), p.config["data"]["sources"][0].update(location="moved")), "train", set()),
    ("fresh", lambda p: p.command("fresh", "build_plan"), "train", {"build_plan"}),
]  # fmt: skip


@pytest.mark.parametrize(
    ("change", "arguments", "expected"), [row[1:] for row in ROWS], ids=[row[0] for row in ROWS]
)
def test_exactly_what_depends_on_it_works(
    project: Project, change: Callable[[Project], object], arguments: str, expected: set[str]
) -> None:
    change(project)
    project.run(*arguments.split())
    assert project.worked() == expected, project.output
    # What was edited or removed is back.
    for path in (project.folder / "results").rglob("*.published"):
        folder = Path(str(path.with_suffix("")).replace("/.request/", "/"))
        for name, (_, sha256) in json.loads(path.read_text())["files"].items():
            assert sha256_of(folder / name) == sha256, f"{folder / name} was not restored"


def test_a_failed_stage_is_made_by_the_same_command_and_nothing_else_twice(project: Project) -> None:
    project.configure("batching", num_buckets=4)
    project.write("fail_build_plan", "")
    output = project.run(ok=False)
    assert "error: build_plan was told to fail\n  full log: logs/default/build_plan.log" in output
    assert project.worked() == {"choose_boundaries", "build_plan"}
    (project.folder / "fail_build_plan").unlink()
    project.run()
    assert project.worked() == AFTER_BOUNDARIES


def test_a_result_edited_in_place_is_restored_with_one_warning_and_poisons_nothing(project: Project) -> None:
    name = "results/default/fit/fit.txt"
    before = (project.folder / name).read_text()
    edit_in_place(project, name)
    output = project.run()
    assert output.count(f"warning: {name} was edited or removed by hand; it will be restored") == 1
    assert (project.folder / name).read_text() == before
    stored = [path.read_text() for path in project.folder.glob(".store/fit/*/result/fit.txt")]
    assert before in stored and not [text for text in stored if "edited" in text]
    assert "warning" not in project.run() and project.worked() == set()


def test_experiments_share_what_they_have_in_common(project: Project) -> None:
    changes = {"packed": {"batching": {"seed": 7}}, "patient": {"training": {"num_epochs": 7}}}
    named = [{"name": name, "change": change} for name, change in changes.items()]
    project.config["experiments"] = [{"name": "default"}, {"name": "twin"}, *named]
    project.run("compare")
    lines = [line for line in project.steps() if " step " not in line]
    # `default` and `twin` are alike but for the name on the page.
    once_more = {
        "build_plan": 1,
        "run_preflight": 1,
        "fit": 2,
        "evaluate": 2,
        "export_drafter": 2,
        "draw_report": 3,
    }
    assert {name: lines.count(name) for name in set(lines)} == {**once_more, "draw_comparison": 1}
    project.run("compare")
    assert project.worked() == set()


def test_starting_from_another_experiment_follows_its_weights(project: Project) -> None:
    project.config["experiments"] = [
        {"name": "default"},
        {"name": "second", "change": {"training": {"start_from": "default"}}},
    ]
    project.run("results/second/fit.json")
    assert project.worked() == {"fit"}
    project.configure("training", seed=5)
    project.run("results/second/fit.json")
    assert [line for line in project.steps() if " step " not in line] == ["fit", "fit"]


def test_why_names_the_setting_that_changed(project: Project) -> None:
    project.configure("evaluation", num_prompts=9)
    changed = r"settings\.evaluation\.num_prompts: \d+ -> 9"
    assert re.search(rf"evaluate: {changed}", project.run())
    assert re.search(changed, project.command("why", "evaluate", "default").stdout)
    assert "encode, evaluate" in project.command("why", "nothing").stderr


def test_adopt_keeps_a_training_whose_code_alone_changed(project: Project) -> None:
    project.run()
    project.worked()
    project.edit("dflash/tiny/weights.py", "= 1", "= 2")
    adopted = project.command("adopt", "default")
    assert adopted.returncode == 0 and "both code digests are recorded" in adopted.stdout, adopted.stderr
    project.run()
    assert project.worked() == AFTER_FIT
    assert "other has no request of fit" in project.command("adopt", "other").stderr


def test_gc_drops_what_no_result_refers_to(project: Project) -> None:
    def stored() -> set[Path]:
        return set(project.folder.glob(".store/*/*/"))

    before = stored()
    listed = project.command("gc", "--dry-run").stdout
    assert stored() == before and "would free" in listed
    assert "freed" in project.command("gc").stdout
    assert len(stored()) < len(before)
    assert "freed 0.0 MB in 0 folders" in project.command("gc").stdout
    project.run()
    assert project.worked() == set()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            "batching={num_bucket: 3}",
            "config: batching.num_bucket is not a setting; did you mean 'num_buckets'?",
        ),
        ("target=nowhere", "target: there is no file or folder with files at 'nowhere'"),
        (
            "data={sources: [{name: a, location: gone.jsonl}]}",
            "data.sources: a has the location 'gone.jsonl', where no file is",
        ),
    ],
)
def test_mistakes_end_in_one_line(project: Project, words: str, message: str) -> None:
    output = project.run("--config", words, ok=False)
    assert message in output and "Traceback" not in output and "Snakefile" not in output
