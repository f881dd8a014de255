"""What the drafter is worth, and its checkpoints for serving engines."""


rule evaluate:
    input:
        request="results/{experiment}/.request/evaluate.json",
        encode=encoded,
        fit="results/{experiment}/fit.json",
    output:
        manifest="results/{experiment}/evaluate.json",
    log:
        "logs/{experiment}/evaluate.log",
    shell:
        command("evaluate", "fit", several=["encode"])


rule export_drafter:
    input:
        request="results/{experiment}/.request/export_drafter.json",
        fit="results/{experiment}/fit.json",
    output:
        manifest="results/{experiment}/export_drafter.json",
    log:
        "logs/{experiment}/export_drafter.log",
    shell:
        command("export_drafter", "fit")
