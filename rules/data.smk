"""From conversations to token shards."""


rule export_corpus:
    input:
        request="results/{experiment}/.request/export_corpus.json",
    output:
        manifest="results/{experiment}/export_corpus.json",
    log:
        "logs/{experiment}/export_corpus.log",
    shell:
        command("export_corpus")


rule pretrain_demo:
    input:
        request="results/{experiment}/.request/pretrain_demo.json",
        export_corpus="results/{experiment}/export_corpus.json",
    output:
        manifest="results/{experiment}/pretrain_demo.json",
    log:
        "logs/{experiment}/pretrain_demo.log",
    shell:
        command("pretrain_demo", "export_corpus")


rule regenerate:
    input:
        request="results/{experiment}/.request/regenerate/{source}.json",
        export_corpus=lambda wildcards: corpus_for(wildcards, "regenerate"),
    output:
        manifest="results/{experiment}/regenerate/{source}.json",
    log:
        "logs/{experiment}/regenerate/{source}.log",
    shell:
        command("regenerate", "export_corpus")


rule encode:
    input:
        request="results/{experiment}/.request/encode/{source}.json",
        export_corpus=lambda wildcards: corpus_for(wildcards, "encode"),
        regenerate=regenerated_for,
    output:
        manifest="results/{experiment}/encode/{source}.json",
    log:
        "logs/{experiment}/encode/{source}.log",
    shell:
        command("encode", "export_corpus", "regenerate")


rule report_data:
    input:
        request="results/{experiment}/.request/report_data.json",
        encode=encoded,
    output:
        manifest="results/{experiment}/report_data.json",
    log:
        "logs/{experiment}/report_data.log",
    shell:
        command("report_data", several=["encode"])
