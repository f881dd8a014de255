"""dflash: from conversations to a trained, evaluated and exported DFlash drafter."""

from pathlib import Path

from snakemake.utils import min_version

min_version("9.21")


configfile: Path(workflow.basedir) / "config" / "config.yaml"


container: "docker://dflash:latest"


include: "rules/common.smk"


# A target names the outputs of all its stages: one that failed or was deleted is then never passed over.
rule train:
    input:
        outputs(EXPERIMENT, TRAIN),


include: "rules/targets.smk"
include: "rules/data.smk"
include: "rules/batching.smk"
include: "rules/planning.smk"
include: "rules/training.smk"
include: "rules/evaluation.smk"
include: "rules/report.smk"
