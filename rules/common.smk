"""What the rules share: the config's experiments, the requests of their stages, and how scripts run."""

import functools
import os
import shlex
import sys
import time

from dflash.config.root import resolve
from dflash.store.canonical import canonical, read_json, write_json
from dflash.store.forecast import forecast
from dflash.store.request import Wanted, bring_up_to_date, manifest_path, runtime_path
from dflash.store.run_lock import failures, hold_run
from dflash.store.sources import folder_files, source_files, target_identity

SCRIPTS = "workflow_scripts"
STORE = Path(".store")


def command(script, *inputs, several=()):
    """The shell command of a rule: its script with the rule's inputs, live output and a log.

    `inputs` are names of inputs that are one manifest (or none), `several` of those that are a list. The first output is
    the manifest; others are published with it.
    `tee` ignores the signals that end the script, so that its last words are kept.
    """
    parts = [f"python -P -m {SCRIPTS}.{script} --request {{input.request:q}}"]
    parts += [f"--input {name} {{input.{name}:q}}" for name in inputs]
    parts += [f"--inputs {name} {{input.{name}:q}}" for name in several]
    return (
        " ".join(parts)
        + " --output {output.manifest:q} 2>&1 | (trap '' INT TERM HUP; exec tee {log:q})"
    )


def sources_of(experiment):
    return {each["name"]: each for each in SETTINGS[experiment]["data"]["sources"]}


def is_builtin(source):
    return source["location"].startswith("builtin:")


def is_regenerated(experiment, source):
    """Whether the target rewrites a source's responses; plain text and tokens have none."""
    return SETTINGS[experiment]["regeneration"]["engine"] != "off" and source[
        "dialect"
    ] not in (
        "text",
        "tokens",
    )


def manifests(experiment, stage, sources=()):
    """The manifest of a stage, or of each source's."""
    paths = [manifest_path(stage, experiment, each) for each in sources] or [
        manifest_path(stage, experiment)
    ]
    return [str(path) for path in paths]


def corpus_for(wildcards, stage):
    """The built-in corpus, where a source is built in and the stage is the first to read it."""
    source = sources_of(wildcards.experiment)[wildcards.source]
    first = stage == "regenerate" or not is_regenerated(wildcards.experiment, source)
    return (
        manifests(wildcards.experiment, "export_corpus")
        if is_builtin(source) and first
        else []
    )


def regenerated_for(wildcards):
    source = sources_of(wildcards.experiment)[wildcards.source]
    needed = is_regenerated(wildcards.experiment, source)
    return (
        manifests(wildcards.experiment, "regenerate", [wildcards.source])
        if needed
        else []
    )


def encoded(wildcards):
    """The token shards of every source, in the order of the config."""
    return manifests(wildcards.experiment, "encode", sources_of(wildcards.experiment))


def start_for(wildcards):
    """The training whose weights are the first ones of this, if another experiment is named."""
    start = SETTINGS[wildcards.experiment]["training"]["start_from"]
    return manifests(start, "fit") if start in SETTINGS else []


def outputs(experiment, stages):
    """The manifests of stages, per-source stages once a source, as plain paths for the target rules."""
    found = []
    for stage in stages:
        if stage in DEMO:
            needed = any(map(is_builtin, sources_of(experiment).values()))
            found += manifests(experiment, stage) if needed else []
        elif stage in ("regenerate", "encode"):
            chosen = [
                name
                for name, source in sources_of(experiment).items()
                if stage == "encode" or is_regenerated(experiment, source)
            ]
            found += manifests(experiment, stage, chosen) if chosen else []
        else:
            found += manifests(experiment, stage)
    return found


PLAN = (
    "export_corpus",
    "regenerate",
    "encode",
    "measure_lengths",
    "choose_boundaries",
    "build_plan",
)
TRAIN = (
    *PLAN,
    "report_data",
    "run_preflight",
    "fit",
    "evaluate",
    "export_drafter",
    "draw_report",
)
ADVISE = (*PLAN, "measure_rates")
LOOK = (*PLAN[:3], "report_data", "draw_data_report")
# Of experiments with the built-in corpus alone.
DEMO = ("export_corpus", "pretrain_demo")


@functools.cache
def target_files(target, revision):
    return target_identity(
        target, revision, Path(workflow.basedir) / "dflash" / "demo", STORE
    )


def identities(experiment):
    """What settings stand for beyond their text: files by content, names on the hub by commit."""
    settings = SETTINGS[experiment]
    target, revision = settings["target"], settings["target_loading"]["revision"]
    found = {"target": target_files(target, revision)}
    if template := settings["data"]["chat_template"]:
        found["data.chat_template"] = folder_files("data.chat_template", Path(template))
    start = settings["training"]["start_from"]
    if start == experiment:
        raise ValueError(f"training.start_from: {experiment} cannot start from itself")
    if start and start not in SETTINGS:
        found["training.start_from"] = folder_files("training.start_from", Path(start))
    return found


def wanted_source(experiment, stage, source, found):
    """A per-source stage: the first to read a source sees its files."""
    name, location = source["name"], source["location"]
    first = stage == "regenerate" or not is_regenerated(experiment, source)
    files = source_files(name, location) if first else {}
    return Wanted(
        stage,
        SETTINGS[experiment],
        experiment,
        name,
        files,
        found,
        {"location": location},
    )


def wanted_of(experiment):
    """Every stage of an experiment, as the config wants it."""
    found = identities(experiment)
    for stage in dict.fromkeys((*TRAIN, *ADVISE, *LOOK, *DEMO)):
        if not (Path(workflow.basedir) / SCRIPTS / f"{stage}.py").exists():
            continue
        for path in map(Path, outputs(experiment, [stage])):
            if path.parent.name == stage:
                source = sources_of(experiment)[path.name.removesuffix(".json")]
                yield wanted_source(experiment, stage, source, found)
            else:
                yield Wanted(stage, SETTINGS[experiment], experiment, identities=found)


def prepare():
    """Bring every request up to date; nothing is written where nothing changed."""
    wanted = [each for experiment in SETTINGS for each in wanted_of(experiment)]
    if (Path(workflow.basedir) / SCRIPTS / "draw_comparison.py").exists():
        compared = {
            name: {key: value for key, value in each.items() if key != "runtime"}
            for name, each in SETTINGS.items()
        }
        wanted.append(Wanted("draw_comparison", {"experiments": compared}))
    identity = SETTINGS[EXPERIMENT]["data"]["identity"]
    for line in bring_up_to_date(wanted, Path(workflow.basedir), SCRIPTS, identity):
        print(f"warning: {line}", file=sys.stderr, flush=True)
    for experiment, settings in SETTINGS.items():
        path = runtime_path(experiment)
        if canonical(read_json(path)) != canonical(settings["runtime"]):
            write_json(path, settings["runtime"])


# `python` is the interpreter that runs Snakemake, and the project comes first on its path, wherever it is called from.
PREFIX = (
    f"set -euo pipefail; export PATH={shlex.quote(os.path.dirname(sys.executable))}:$PATH "
    f"PYTHONPATH={shlex.quote(str(workflow.basedir))}${{PYTHONPATH:+:$PYTHONPATH}}; "
)
shell.prefix(PREFIX.replace("{", "{{").replace("}", "}}"))

RUN_START = time.time()
try:
    EXPERIMENT, _settings = resolve(config)
    SETTINGS = {name: each.model_dump(mode="json") for name, each in _settings.items()}
    if workflow.is_main_process:
        prepare()
except ValueError as error:
    # One clean message; an error raised here would come with a traceback.
    print(error, file=sys.stderr, flush=True)
    sys.exit(1)


wildcard_constraints:
    experiment=r"[A-Za-z0-9][A-Za-z0-9_-]*",
    source=r"[A-Za-z0-9][A-Za-z0-9_.-]*",


onstart:
    if workflow.is_main_process:
        # Held until this process ends.
        hold_run()
        due = [job for job in workflow.dag.needrun_jobs() if job.rule.log]
        print(forecast(Path(job.input.request) for job in due), flush=True)


onerror:
    for line in failures(Path("logs"), Path("results"), RUN_START):
        print(line, file=sys.stderr, flush=True)
