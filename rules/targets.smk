"""What can be asked for beside `train`; inputs only."""


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
        outputs(EXPERIMENT, LOOK),


rule demo:
    input:
        outputs(EXPERIMENT, DEMO),
