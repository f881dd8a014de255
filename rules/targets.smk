"""What can be asked for. Each target names the outputs of all its stages: one that failed or was deleted is then never
passed over."""


rule train:
    default_target: True
    input:
        outputs(EXPERIMENT, TRAIN),


rule compare:
    input:
        [outputs(experiment, TRAIN) for experiment in SETTINGS],
        manifests(None, "draw_comparison"),


rule plan:
    input:
        outputs(EXPERIMENT, PLAN),


rule preflight:
    input:
        outputs(EXPERIMENT, [*PLAN, "run_preflight"]),


rule advise:
    input:
        outputs(EXPERIMENT, ADVISE),


rule data_report:
    input:
        outputs(EXPERIMENT, [*PLAN[:3], "report_data"]),
